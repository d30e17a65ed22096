//! Rows of an older build carried over to a new one, as far as its code is the same.
//!
//! A function of the old build is one of the new if it has the same *shape*: the same instructions, but for fields
//! that hold addresses, and the same jumps within it. It is looked for by name first; what is left by shape alone,
//! where that is the shape of one function in each build. So code that only moved keeps its counts, and code that
//! changed loses them: a count that is attributed to other code is worse than none.
//!
//! Counters are numbers in a map that each build has of its own, so their rows cannot be carried over here. `postlink
//! convert` makes a profile by names of them.

use std::collections::HashMap;
use std::hash::Hasher;

use anyhow::{Context, Result, bail};
use postlink_aggregate::Binary;
use postlink_elf::elf::Elf;
use postlink_isa::{Decode, Flow, Isa, with_isa};

use crate::engine::{Engine, TABLE, at, column, numbers, quoted, strings, sum};
use crate::rows;
use crate::schema::{AddressKind, Kind, OUTSIDE, Row, Rows, to_text};

/// Least size in bytes of a function that is recognised without its name.
const LEAST_SIZE: u64 = 32;

/// A function, and what its code is apart from addresses.
struct Shape {
    start: u64,
    size: u64,
    name: Vec<u8>,
    hash: u64,
}

fn shapes(file: &rows::Binary) -> Result<Vec<Shape>> {
    let elf = file.elf()?;
    let binary = Binary::new(&file.path, &elf)?;
    Ok(with_isa!(binary.machine, I => shapes_with::<I>(&binary, &elf)))
}

fn shapes_with<I: Isa>(binary: &Binary<'_, '_>, elf: &Elf<'_>) -> Vec<Shape> {
    let functions = binary.functions.list().iter().enumerate();
    let shape = |(index, function): (usize, &postlink_bolt_symbols::Function)| {
        let code = elf.bytes_at(function.start, function.size)?;
        Some(Shape {
            start: function.start,
            size: function.size,
            name: binary.functions.name(index, true).into_owned(),
            hash: shape_of::<I>(code, function.start)?,
        })
    };
    functions
        .filter(|(_, function)| !function.stub && !function.doubtful && function.size > 0)
        .filter_map(shape)
        .collect()
}

/// A hash of the code of a function without what depends on where it and others are. `None` if it is not all code.
fn shape_of<I: Decode>(code: &[u8], start: u64) -> Option<u64> {
    let mut hash = std::hash::DefaultHasher::new();
    let end = start + code.len() as u64;
    let mut stopped = start;
    let invalid = I::sweep(code, start, |insn| {
        let from = (insn.addr - start) as usize;
        let bytes = code.get(from..from + usize::from(insn.len)).unwrap_or(&[]);
        hash.write_u8(insn.len);
        match insn.field {
            None => hash.write(bytes),
            Some(field) => {
                hash.write(bytes.get(..usize::from(field.at)).unwrap_or(&[]));
                let flow = match insn.flow {
                    Flow::Next => 0,
                    Flow::Jump { .. } => 1,
                    Flow::CondJump { cond, .. } => {
                        hash.write_u32(cond.0);
                        2
                    }
                    Flow::ShortCond { .. } => 3,
                    Flow::Call { .. } => 4,
                    Flow::IndirectCall => 5,
                    Flow::IndirectJump => 6,
                    Flow::Return => 7,
                    Flow::Stop | Flow::Trap => 8,
                };
                hash.write_u8(flow);
                let inside = (start..end).contains(&field.target);
                hash.write_u64(if inside {
                    field.target - start
                } else {
                    u64::MAX
                });
            }
        }
        stopped = insn.end();
        true
    });
    (invalid.is_none() && stopped == end).then(|| hash.finish())
}

/// Which functions of an old build are which of the new.
pub struct Map {
    /// By start in the old build: size, start in the new.
    by_start: Vec<(u64, u64, u64)>,
    /// By name in the old build, as text: the name in the new.
    by_name: HashMap<String, String>,
    /// Functions of the old build.
    pub functions: usize,
}

impl Map {
    /// Compares two builds.
    pub fn new(old: &rows::Binary, new: &rows::Binary) -> Result<Map> {
        let (old, new) = (shapes(old)?, shapes(new)?);
        let mut by_name: HashMap<&[u8], Vec<&Shape>> = HashMap::new();
        let mut by_shape: HashMap<(u64, u64), Vec<&Shape>> = HashMap::new();
        for shape in &new {
            by_name.entry(&shape.name).or_default().push(shape);
            by_shape
                .entry((shape.size, shape.hash))
                .or_default()
                .push(shape);
        }
        let mut olds: HashMap<(u64, u64), usize> = HashMap::new();
        for shape in &old {
            *olds.entry((shape.size, shape.hash)).or_default() += 1;
        }
        let mut map = Map {
            by_start: vec![],
            by_name: HashMap::new(),
            functions: old.len(),
        };
        for shape in &old {
            let key = (shape.size, shape.hash);
            let named = by_name
                .get(&shape.name[..])
                .and_then(|same| match same[..] {
                    [one] if (one.size, one.hash) == key => Some(one),
                    _ => None,
                });
            let alike = || match by_shape.get(&key)?[..] {
                [one] if olds.get(&key) == Some(&1) && one.size >= LEAST_SIZE => Some(one),
                _ => None,
            };
            if let Some(found) = named.or_else(alike) {
                map.by_start.push((shape.start, shape.size, found.start));
                map.by_name
                    .insert(to_text(&shape.name), to_text(&found.name));
            }
        }
        map.by_start.sort_unstable();
        Ok(map)
    }

    /// Functions that are in both.
    pub fn found(&self) -> usize {
        self.by_start.len()
    }

    /// The function that an address is in.
    fn function(&self, address: u64) -> Option<(u64, u64, u64)> {
        let after = self.by_start.partition_point(|f| f.0 <= address);
        let found = *self.by_start.get(after.checked_sub(1)?)?;
        (address - found.0 < found.1).then_some(found)
    }

    fn address(&self, address: u64) -> Option<u64> {
        let (start, _, new) = self.function(address)?;
        Some(new + (address - start))
    }

    fn name(&self, name: &str) -> Option<String> {
        if name.starts_with(OUTSIDE) {
            Some(name.to_owned())
        } else {
            self.by_name.get(name).cloned()
        }
    }
}

/// What was carried over.
#[derive(Debug, Default)]
pub struct Carried {
    pub rows: Rows,
    /// The newest day of the old rows.
    pub day: i32,
    /// Sums of counts.
    pub kept: u128,
    pub lost: u128,
    /// Rows of counters and of other kinds that cannot be carried over.
    pub others: u64,
}

/// Carries the rows of a build over.
pub async fn carry(
    engine: &Engine,
    old: &rows::Binary,
    new: &rows::Binary,
    conditions: &[String],
) -> Result<(Carried, Map)> {
    let (from_id, to_id) = (old.identity()?.to_string(), new.identity()?.to_string());
    if from_id == to_id {
        bail!(
            "{} and {} are the same build {from_id}",
            old.path.display(),
            new.path.display()
        );
    }
    let map = Map::new(old, new)?;
    let mut carried = Carried::default();
    let file = carried.rows.file(&to_id, &new.name());
    let keys =
        "kind, map, address_kind, from_function, from_address, to_function, to_address, run, event";
    let mut filter = format!("WHERE build_id = {}", quoted(&from_id));
    for condition in conditions {
        filter += &format!(" AND {condition}");
    }
    let sql = format!(
        "SELECT {keys}, {}, {}, max(day) AS day FROM {TABLE} {filter} GROUP BY {keys}",
        sum("count"),
        sum("mispredictions")
    );
    engine
        .each(&sql, |batch| {
            let days = column(batch, "day")?;
            let days = days
                .as_any()
                .downcast_ref::<datafusion::arrow::array::Date32Array>()
                .context("the rows have no days")?;
            let texts = [
                "kind",
                "address_kind",
                "map",
                "event",
                "from_function",
                "to_function",
            ];
            let texts = texts.map(|name| strings(batch, name));
            let [kinds, address_kinds, maps, events, from_names, to_names] = texts;
            let (kinds, address_kinds, maps, events) = (kinds?, address_kinds?, maps?, events?);
            let (from_names, to_names) = (from_names?, to_names?);
            let values = [
                "from_address",
                "to_address",
                "run",
                "count",
                "mispredictions",
            ];
            let [from, to, runs, counts, missed] = values.map(|name| numbers(batch, name));
            let (from, to, runs, counts, missed) = (from?, to?, runs?, counts?, missed?);
            for row in 0..batch.num_rows() {
                carried.day = carried.day.max(at(days, row).unwrap_or(0));
                let old = Old {
                    kind: at(&kinds, row).and_then(Kind::named),
                    address_kind: at(&address_kinds, row).and_then(AddressKind::named),
                    from: (at(&from_names, row), at(&from, row)),
                    to: (at(&to_names, row), at(&to, row)),
                    run: at(&runs, row),
                };
                let count = at(&counts, row).unwrap_or(0);
                let sum = match old.moved(&map) {
                    Moved::Other => {
                        carried.others += 1;
                        continue;
                    }
                    Moved::Lost => &mut carried.lost,
                    Moved::To(place) => {
                        let rows = &mut carried.rows;
                        let moved = Row {
                            file,
                            kind: old.kind,
                            address_kind: old.address_kind,
                            map: at(&maps, row).map(|map| rows.name(map)),
                            from_function: place.from.0.map(|name| rows.name(&name)),
                            from_address: place.from.1,
                            to_function: place.to.0.map(|name| rows.name(&name)),
                            to_address: place.to.1,
                            run: place.run,
                            event: rows.name(at(&events, row).unwrap_or_default()),
                            count,
                            mispredictions: at(&missed, row).unwrap_or(0),
                        };
                        rows.rows.push(moved);
                        match old.kind {
                            Some(Kind::Profile) => continue,
                            _ => &mut carried.kept,
                        }
                    }
                };
                *sum += u128::from(count);
            }
            Ok(())
        })
        .await?;
    Ok((carried, map))
}

/// A row of the old build.
struct Old<'a> {
    kind: Option<Kind>,
    address_kind: Option<AddressKind>,
    from: (Option<&'a str>, Option<u64>),
    to: (Option<&'a str>, Option<u64>),
    run: Option<u64>,
}

/// Where it is in the new build.
struct New {
    from: (Option<String>, Option<u64>),
    to: (Option<String>, Option<u64>),
    run: Option<u64>,
}

enum Moved {
    To(New),
    /// Its code is not in the new build.
    Lost,
    /// It is of a kind that cannot be carried over.
    Other,
}

impl Old<'_> {
    fn moved(&self, map: &Map) -> Moved {
        let moved = match (self.kind, self.address_kind) {
            (Some(Kind::Statistic), _) | (None, _) => return Moved::Other,
            (Some(Kind::Profile), Some(AddressKind::Linked | AddressKind::Function)) => Some(New {
                from: (None, None),
                to: (None, None),
                run: None,
            }),
            (_, Some(AddressKind::Linked)) => self.by_address(map),
            (_, Some(AddressKind::Function)) => self.by_name(map),
            _ => return Moved::Other,
        };
        moved.map_or(Moved::Lost, Moved::To)
    }

    fn by_address(&self, map: &Map) -> Option<New> {
        let place = |address: Option<u64>| match address {
            Some(address) => map.address(address).map(Some),
            None => Some(None),
        };
        // Memory in no file of which the address is one of the process.
        let outside = self.to.0.is_some();
        let run = self.run.zip(self.to.1).filter(|&(run, to)| {
            let (start, end) = (map.function(to), to.checked_add(run));
            start.is_some() && end.is_some_and(|end| map.function(end) == start)
        });
        let needs_run = !matches!(self.kind, Some(Kind::Branch | Kind::Return));
        if self.run.is_some() && run.is_none() && needs_run {
            return None;
        }
        Some(New {
            from: (None, place(self.from.1)?),
            to: if outside {
                (self.to.0.map(str::to_owned), self.to.1)
            } else {
                (None, place(self.to.1)?)
            },
            run: run.map(|(run, _)| run),
        })
    }

    fn by_name(&self, map: &Map) -> Option<New> {
        let place = |(name, offset): (Option<&str>, Option<u64>)| match name {
            Some(name) => Some((Some(map.name(name)?), offset)),
            None => Some((None, offset)),
        };
        Some(New {
            from: place(self.from)?,
            to: place(self.to)?,
            run: None,
        })
    }
}
