//! The table of all rows: the shards of an inventory, each with the size that it had when it was checked.
//!
//! A table that lists its files would ask a store for each of them again; here nothing is asked, and what is read is
//! what was checked, by [`Scan`], here and on a cluster.

use std::sync::Arc;

use anyhow::{Result, bail};
use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::datasource::TableType;
use datafusion::logical_expr::{Expr, Operator, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use url::Position;

use crate::files;
use crate::operator::{Over, failed};
use crate::place::Place;
use crate::read::Input;
use crate::scan::Scan;
use crate::schema::{column, schema};
use crate::shard::Inventory;

/// The table.
#[derive(Debug)]
pub struct Counts {
    files: Vec<Input>,
}

impl Counts {
    /// Of the shards that are used, which must be in one store.
    pub fn new(inventory: &Inventory) -> Result<Counts> {
        let mut first = None;
        for shard in &inventory.used {
            let beginning = match &shard.place {
                Place::Path(_) => "file://",
                Place::Object(url) => &url[..Position::BeforePath],
            };
            let (other, place) = first.get_or_insert((beginning, &shard.place));
            if *other != beginning {
                bail!(
                    "{place} and {} are in different stores: one command reads one store",
                    shard.place
                );
            }
        }
        if first.is_none() {
            bail!("no shard there that can be used");
        }
        Ok(Counts {
            files: inventory.used.iter().map(Input::from).collect(),
        })
    }
}

#[async_trait]
impl TableProvider for Counts {
    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// Filters by build leave whole row groups out; all others are the engine's.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>, DataFusionError> {
        let support = |filter: &&Expr| match build(filter) {
            Some(_) => TableProviderFilterPushDown::Inexact,
            None => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        let schema = match projection {
            Some(columns) => Arc::new(schema().project(columns)?),
            None => schema(),
        };
        let files = files::plan(&self.files, state.config().target_partitions()).map_err(failed)?;
        let build = filters.iter().find_map(build);
        Ok(Arc::new(Over::new(Scan { schema, build }, files)))
    }
}

/// The build of a filter that asks for one.
fn build(filter: &Expr) -> Option<String> {
    let Expr::BinaryExpr(binary) = filter else {
        return None;
    };
    let sides = match (binary.left.as_ref(), binary.op, binary.right.as_ref()) {
        (Expr::Column(column), Operator::Eq, Expr::Literal(value, _)) => (column, value),
        (Expr::Literal(value, _), Operator::Eq, Expr::Column(column)) => (column, value),
        _ => return None,
    };
    match sides {
        (of, ScalarValue::Utf8(Some(build))) if of.name == column::BUILD_ID => Some(build.clone()),
        _ => None,
    }
}
