//! stub
use crate::{RuntimeConfig, RuntimeError};
/// stub
pub fn runtime(_: &RuntimeConfig<'_>) -> Result<Vec<u8>, RuntimeError> {
    Err(RuntimeError::Assemble {
        why: "to be written".into(),
    })
}
