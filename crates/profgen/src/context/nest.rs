//! Folding chains of callers into functions with inlined functions: the form that a compiler reads fastest.
//!
//! What has a caller in the profile becomes an inlined function of it; the caller's sum grows by the
//! callee's, and the call that is inlined now no longer counts as a call. What has no caller, or one without
//! counts, becomes a function on its own. If wanted, every inlined function is added to the function on its
//! own too, for compilers that see modules one by one, and marked as counted twice.

#![allow(
    clippy::indexing_slicing,
    reason = "indexes are numbers that this module gave to elements of its own lists; a file says none of them"
)]

use rustc_hash::FxHashMap;

use super::trie::{self, ROOT, Trie};
use crate::sample::{Context, DUPLICATED_INTO_BASE, Function, Location, Step};

/// Turns a tree into functions without chains.
pub fn nest(trie: Trie, duplicate: bool) -> FxHashMap<Context, Function> {
    let mut nesting = Nesting {
        trie,
        duplicate,
        functions: FxHashMap::default(),
    };
    nesting.children(ROOT);
    nesting.functions
}

struct Nesting {
    trie: Trie,
    duplicate: bool,
    functions: FxHashMap<Context, Function>,
}

impl Nesting {
    /// Folds what is below a node into it. Callees come before their callers.
    fn children(&mut self, top: trie::Id) {
        // (node, its children are done)
        let mut open = vec![(top, false)];
        while let Some((id, done)) = open.pop() {
            if !done {
                open.push((id, true));
                let children: Vec<trie::Id> = self
                    .trie
                    .node(id)
                    .children
                    .values()
                    .rev()
                    .copied()
                    .collect();
                open.extend(children.into_iter().map(|child| (child, false)));
            } else if id != ROOT {
                self.fold(id);
            }
        }
    }

    /// Puts a node, whose children are folded into it, where it belongs.
    fn fold(&mut self, id: trie::Id) {
        let Some(function) = self.trie.take(id) else {
            return;
        };
        let (name, site) = (self.trie.node(id).name, self.trie.node(id).site);
        let parent = self.trie.parent(id).unwrap_or(ROOT);
        let base = vec![Step {
            name,
            at: Location::default(),
        }];
        let Some(caller) = self.trie.sampled(parent).filter(|_| parent != ROOT) else {
            self.add(base, &function);
            return;
        };
        if self.duplicate {
            self.add(base, &function);
        }
        let caller = &mut self.trie.samples[caller].function;
        caller.add_total(function.total);
        let removed = caller.remove_target(site, name);
        caller.total = caller.total.saturating_sub(removed);
        let inlinee = caller
            .inlinees
            .entry(site)
            .or_default()
            .entry(name)
            .or_insert(function);
        if self.duplicate {
            inlinee.attributes |= DUPLICATED_INTO_BASE;
        }
    }

    fn add(&mut self, context: Context, function: &Function) {
        Function::merge_into(self.functions.entry(context), function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Profile, text};

    fn nested(profile: &str, duplicate: bool) -> String {
        let mut profile: Profile = text::read(profile.as_bytes()).unwrap();
        let trie = Trie::new(&profile.names, std::mem::take(&mut profile.functions));
        profile.functions = nest(trie, duplicate);
        profile.context_sensitive = false;
        let mut out = Vec::new();
        text::write(&profile, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const CHAINS: &str = "[main:1 @ f:3 @ g]:7:7\n 1: 7\n[main:1 @ f]:20:10\n 1: 10\n 3: 10 g:7 h:3\n[main]:11:1\n 1: 10 f:10\n 2: 1\n[x:4 @ g]:5:5\n 1: 5\n";

    #[test]
    fn callees_become_inlined_functions_and_their_calls_are_taken_off() {
        assert_eq!(
            nested(CHAINS, false),
            "main:21:1\n 2: 1\n 1: f:20\n  1: 10\n  3: 3 h:3\n  3: g:7\n   1: 7\ng:5:5\n 1: 5\n"
        );
    }

    #[test]
    fn inlined_functions_stand_alone_too_if_wanted() {
        let text = nested(CHAINS, true);
        assert!(text.contains("g:12:12\n 1: 12\n"), "{text}");
        assert!(text.contains("   !Attributes: 4\n"), "{text}");
    }
}
