//! Options of the passes that change branches and calls.

use clap::{Args, ValueEnum};
use postlink_rewrite::{Inlining, Promotion, Threading};

/// Which indirect branches are compared with what they mostly lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PromotionArg {
    /// None
    None,
    /// Calls
    Calls,
}

/// Which peephole optimisations are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeepholesArg {
    /// None
    None,
    /// Branches to jumps lead to where those lead
    DoubleJumps,
}

/// Changes of branches and calls.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Changing instructions")]
pub struct BranchPasses {
    /// Compare the operands of indirect calls with the functions that they mostly lead to, and call those directly
    /// (x86-64)
    #[arg(long, visible_alias = "icp", value_name = "WHICH")]
    pub indirect_call_promotion: Option<PromotionArg>,
    /// With at most so many functions (up to 4)
    #[arg(long, visible_alias = "icp-topn", value_name = "N", default_value_t = Promotion::OFF.most)]
    pub indirect_call_promotion_topn: u32,
    /// Only with functions that have this part of the executions that are left
    #[arg(long, value_name = "PERCENT", default_value_t = Promotion::OFF.of_remaining)]
    pub icp_calls_remaining_percent_threshold: u32,
    /// Only with functions that have this part of all executions of the call
    #[arg(long, value_name = "PERCENT", default_value_t = Promotion::OFF.of_total)]
    pub icp_calls_total_percent_threshold: u32,
    /// Only the hottest calls that together have this part of the executions of all indirect calls; 0: all
    #[arg(long, value_name = "PERCENT", default_value_t = Promotion::OFF.hottest)]
    pub icp_top_callsites: u32,
    /// Put functions of a few instructions in place of calls of them (x86-64) [default: false; true with --preset max]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub inline_small_functions: Option<bool>,
    /// Those of at most so many bytes (up to 24)
    #[arg(long, value_name = "BYTES", default_value_t = Inlining::MOST_BYTES)]
    pub inline_small_functions_bytes: u32,
    /// Make a conditional branch to a jump out of the function one branch (x86-64) [default: false; true with --preset
    /// max]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub simplify_conditional_tail_calls: Option<bool>,
    /// Peephole optimisations [default: none; double-jumps with --preset max]
    #[arg(long, value_name = "WHICH")]
    pub peepholes: Option<PeepholesArg>,
}

impl BranchPasses {
    /// For the library.
    pub fn promotion(&self, default: Promotion) -> Promotion {
        Promotion {
            calls: (self.indirect_call_promotion)
                .map_or(default.calls, |which| which == PromotionArg::Calls),
            most: self.indirect_call_promotion_topn,
            of_remaining: self.icp_calls_remaining_percent_threshold,
            of_total: self.icp_calls_total_percent_threshold,
            hottest: self.icp_top_callsites,
        }
    }

    /// For the library.
    pub fn inlining(&self, default: Inlining) -> Inlining {
        let on = self.inline_small_functions.unwrap_or(default.bytes > 0);
        Inlining {
            bytes: if on {
                self.inline_small_functions_bytes
            } else {
                0
            },
        }
    }

    /// For the library.
    pub fn threading(&self, default: Threading) -> Threading {
        Threading {
            double_jumps: (self.peepholes)
                .map_or(default.double_jumps, |p| p == PeepholesArg::DoubleJumps),
            tail_calls: (self.simplify_conditional_tail_calls).unwrap_or(default.tail_calls),
        }
    }
}
