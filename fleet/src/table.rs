//! The table of all rows: the shards of an inventory, each with the size that it had when it was checked.
//!
//! A table that lists its files would ask a store for each of them again; here nothing is asked, and what is read is
//! what was checked. In this process [`Scan`] reads; a cluster gets a plan of operators that its executors know.

use std::sync::Arc;

use anyhow::{Result, bail};
use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::datasource::TableType;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::logical_expr::{Expr, Operator, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use url::Position;

use crate::place::Place;
use crate::read::Input;
use crate::scan::Scan;
use crate::schema::{column, schema};
use crate::shard::Inventory;
use crate::store;

/// The table.
#[derive(Debug)]
pub struct Counts {
    store: ObjectStoreUrl,
    files: Vec<Input>,
    is_here: bool,
}

impl Counts {
    /// Of the shards that are used, which must be in one store; for plans of this process, or for those of a cluster.
    pub fn new(inventory: &Inventory, is_here: bool) -> Result<Counts> {
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
        let Some((store, _)) = first else {
            bail!("no shard there that can be used");
        };
        Ok(Counts {
            store: ObjectStoreUrl::parse(store)?,
            files: inventory.used.iter().map(Input::from).collect(),
            is_here,
        })
    }

    /// The files as DataFusion's own reader takes them.
    fn for_cluster(&self) -> Result<FileGroup> {
        let files = self.files.iter().map(|input| {
            let mut file = PartitionedFile::new(String::new(), input.bytes);
            file.object_meta.location = store::key(&input.place.url()?)?;
            Ok(file)
        });
        Ok(FileGroup::new(files.collect::<Result<_>>()?))
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

    /// Filters by build leave whole row groups out; all others are given to the scan later, by the optimizer of
    /// physical plans, or are the engine's.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>, DataFusionError> {
        let support = |filter: &&Expr| match build(filter) {
            Some(_) if self.is_here => TableProviderFilterPushDown::Inexact,
            _ => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        let partitions = state.config().target_partitions();
        if self.is_here {
            let schema = match projection {
                Some(columns) => Arc::new(schema().project(columns)?),
                None => schema(),
            };
            let build = filters.iter().find_map(build);
            return Ok(Arc::new(Scan::new(&self.files, schema, partitions, build)));
        }
        let format = ParquetFormat::default();
        let source = format.file_source(TableSchema::from(schema()));
        let files = self.for_cluster();
        let files = files.map_err(|error| DataFusionError::External(error.into()))?;
        let config = FileScanConfigBuilder::new(self.store.clone(), source)
            .with_file_groups(files.split_files(partitions))
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        format.create_physical_plan(state, config).await
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
