//! Operators of ours in a plan that travels from the client to the scheduler, and from there to executors.
//!
//! ```text
//! magic     15 bytes  begins with 0, as no message of Protocol Buffers does: those are Ballista's operators
//! version   32 bits   little-endian; of what follows, and of what it means
//! length     8 bits   of the program's version
//! program             as text
//! operator   8 bits   0 Scan, 1 AddUp, 2 Check
//! Scan                number of columns, 8 bits; each column's number in the schema, 8 bits; 0, or 1 and a build, up to the end
//! AddUp               0, or 1 and the first day as 32 bits
//! Check               nothing
//! ```
//!
//! The files that an operator reads are in the plan below it. What an executor has, memory and folders, is its own and
//! does not travel.

use std::sync::Arc;

use ballista_core::serde::BallistaPhysicalExtensionCodec;
use datafusion::common::{Result, exec_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};

use super::add_up::{AddUp, Share};
use super::check::Check;
use crate::operator::{Operator, Over, only};
use crate::scan::Scan;
use crate::schema::schema;

const MAGIC: &[u8] = b"\0postlink-fleet";
/// Of plans. It rises with every change of what is sent, and of what an operator of that name gives.
pub const VERSION: u32 = 3;
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

const SCAN: u8 = 0;
const ADD_UP: u8 = 1;
const CHECK: u8 = 2;

/// The codec of plans.
#[derive(Debug, Default)]
pub struct Codec {
    others: BallistaPhysicalExtensionCodec,
    share: Option<Share>,
}

impl Codec {
    /// Of the client, and of a scheduler.
    pub fn new() -> Codec {
        Codec::default()
    }

    /// Of an executor, whose tasks have so much each.
    pub fn of_executor(share: Share) -> Codec {
        Codec {
            share: Some(share),
            ..Codec::default()
        }
    }

    fn decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut bytes = Bytes(bytes);
        let version = u32::from_le_bytes(bytes.array()?);
        let length = bytes.byte()?;
        let program = String::from_utf8_lossy(bytes.take(length.into())?);
        if version != VERSION {
            return exec_err!(
                "the plan was made by postlink-fleet {program} and has version {version}; this is postlink-fleet {PROGRAM}, \
                 which runs version {VERSION}: the scheduler, the executors and the client must be of one version"
            );
        }
        let input = only(inputs.to_vec())?;
        let operator = bytes.byte()?;
        let plan: Arc<dyn ExecutionPlan> = match operator {
            SCAN => {
                let count = bytes.byte()?;
                let columns = bytes.take(count.into())?;
                let columns: Vec<usize> = columns.iter().map(|at| usize::from(*at)).collect();
                let schema = Arc::new(schema().project(&columns)?);
                let build = match bytes.flag()? {
                    false => None,
                    true => Some(bytes.rest_as_text()?),
                };
                Arc::new(Over::new(Scan { schema, build }, input))
            }
            ADD_UP => {
                let since = match bytes.flag()? {
                    false => None,
                    true => Some(i32::from_le_bytes(bytes.array()?)),
                };
                let share = self.share.clone();
                Arc::new(Over::new(AddUp { since, share }, input))
            }
            CHECK => Arc::new(Over::new(Check, input)),
            other => return exec_err!("a plan with the unknown operator {other}"),
        };
        bytes.end()?;
        Ok(plan)
    }
}

impl PhysicalExtensionCodec for Codec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match bytes.strip_prefix(MAGIC) {
            Some(ours) => self.decode(ours, inputs),
            None => self.others.try_decode(bytes, inputs, context, converter),
        }
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        out: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(operator) = encoded(node.as_ref())? else {
            return self.others.try_encode(node, out, converter);
        };
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.push(PROGRAM.len() as u8);
        out.extend_from_slice(PROGRAM.as_bytes());
        out.extend_from_slice(&operator);
        Ok(())
    }
}

/// An operator of ours. `None` for others.
fn encoded(node: &dyn ExecutionPlan) -> Result<Option<Vec<u8>>> {
    let mut out = Vec::new();
    if let Some(Scan {
        schema: some,
        build,
    }) = ours(node)
    {
        let all = schema();
        out.extend([SCAN, some.fields().len() as u8]);
        for field in some.fields() {
            out.push(all.index_of(field.name())? as u8);
        }
        out.push(u8::from(build.is_some()));
        out.extend_from_slice(build.as_deref().unwrap_or_default().as_bytes());
    } else if let Some(AddUp { since, .. }) = ours(node) {
        out.extend([ADD_UP, u8::from(since.is_some())]);
        out.extend(since.iter().flat_map(|day| day.to_le_bytes()));
    } else if ours::<Check>(node).is_some() {
        out.push(CHECK);
    } else {
        return Ok(None);
    }
    Ok(Some(out))
}

fn ours<T: Operator>(node: &dyn ExecutionPlan) -> Option<&T> {
    node.downcast_ref::<Over<T>>().map(Over::operator)
}

/// What is left to decode.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.0.split_at_checked(count) else {
            return exec_err!(
                "an operator of a plan is cut short: {count} bytes more were expected, and {} are there",
                self.0.len()
            );
        };
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Result<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => exec_err!("{other} in an operator of a plan, where 0 or 1 must be"),
        }
    }

    fn rest_as_text(&mut self) -> Result<String> {
        let bytes = self.take(self.0.len())?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => exec_err!("a build-id of a plan is no text: {error}"),
        }
    }

    fn end(&self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            more => exec_err!("{more} bytes after an operator of a plan"),
        }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::SessionContext;
    use datafusion_proto::physical_plan::AsExecutionPlan;
    use datafusion_proto::protobuf::PhysicalPlanNode;

    use super::*;
    use crate::cluster::{add_up, check};
    use crate::files;
    use crate::read::Input;

    fn files() -> Vec<Input> {
        let file = |number: u64| Input {
            place: format!("/a/ü {number}.parquet").as_str().into(),
            bytes: 100 + number,
            rows: number,
        };
        (0..5).map(file).collect()
    }

    fn plans() -> Vec<Arc<dyn ExecutionPlan>> {
        let scan = |columns: &[usize], build: Option<&str>| -> Arc<dyn ExecutionPlan> {
            let files = files::plan(&files(), 2).unwrap();
            let schema = Arc::new(schema().project(columns).unwrap());
            let build = build.map(str::to_owned);
            Arc::new(Over::new(Scan { schema, build }, files))
        };
        let places: Vec<_> = files().into_iter().map(|file| file.place).collect();
        vec![
            scan(&[], None),
            scan(&[17, 0, 3], Some("deadbeef01")),
            scan(&[1], Some("")),
            add_up::plan(&files::parts(&files(), 3), None).unwrap(),
            add_up::plan(&files::parts(&files(), 16), Some(-7)).unwrap(),
            check::plan(&places, 2).unwrap(),
        ]
    }

    fn shown(plan: &Arc<dyn ExecutionPlan>) -> String {
        displayable(plan.as_ref()).indent(true).to_string()
    }

    #[test]
    fn plans_come_out_as_they_went_in() {
        let (codec, task) = (Codec::new(), SessionContext::new().task_ctx());
        for plan in plans() {
            let sent = PhysicalPlanNode::try_from_physical_plan(plan.clone(), &codec).unwrap();
            let mut bytes = Vec::new();
            sent.try_encode(&mut bytes).unwrap();
            let received = PhysicalPlanNode::try_decode(&bytes).unwrap();
            let received = received.try_into_physical_plan(&task, &codec).unwrap();
            assert_eq!(shown(&received), shown(&plan));
            let partitions = |plan: &Arc<dyn ExecutionPlan>| {
                plan.properties().output_partitioning().partition_count()
            };
            assert_eq!(partitions(&received), partitions(&plan));
            assert_eq!(received.schema(), plan.schema());
        }
    }

    #[test]
    fn a_plan_of_another_version_is_a_sentence_with_both() {
        let (codec, input) = (Codec::new(), files::plan(&files(), 1).unwrap());
        let mut bytes = (VERSION + 1).to_le_bytes().to_vec();
        bytes.extend_from_slice(b"\x039.9 what nobody knows yet");
        let error = codec.decode(&bytes, &[input]).unwrap_err().to_string();
        let both = [
            "postlink-fleet 9.9 and has version 4",
            "runs version 3: the scheduler, the executors and the client must be of one version",
        ];
        assert!(both.iter().all(|part| error.contains(part)), "{error}");
    }

    #[test]
    fn operators_that_are_cut_or_longer_are_refused() {
        let codec = Codec::new();
        for plan in plans() {
            let Some(operator) = encoded(plan.as_ref()).unwrap() else {
                panic!("{}", plan.name());
            };
            let mut whole = VERSION.to_le_bytes().to_vec();
            whole.push(0);
            whole.extend_from_slice(&operator);
            let input = || vec![files::plan(&files(), 1).unwrap()];
            assert!(codec.decode(&whole, &input()).is_ok());
            assert!(codec.decode(&whole, &[]).is_err());
            let is_open = plan.is::<Over<Scan>>() && operator.last() != Some(&0);
            if !is_open {
                for length in 0..whole.len() {
                    assert!(codec.decode(&whole[..length], &input()).is_err());
                }
                whole.push(7);
                assert!(codec.decode(&whole, &input()).is_err());
            }
        }
    }
}
