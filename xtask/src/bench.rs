//! `cargo xtask bench`.
pub fn run(_: &[String]) -> anyhow::Result<bool> {
    anyhow::bail!("not there yet")
}
