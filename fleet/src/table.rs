//! The table of all rows: the shards of an inventory, each with the size that it had when it was checked.
//!
//! A table that lists its files would ask a store for each of them again; here nothing is asked, and what is read is
//! what was checked.

use std::sync::Arc;

use anyhow::{Result, bail};
use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DataFusionError;
use datafusion::datasource::TableType;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use url::Position;

use crate::schema::schema;
use crate::shard::Inventory;
use crate::store;

/// The table.
#[derive(Debug)]
pub struct Counts {
    store: ObjectStoreUrl,
    files: Vec<PartitionedFile>,
}

impl Counts {
    /// Of the shards that are used, which must be in one store.
    pub fn new(inventory: &Inventory) -> Result<Counts> {
        let (mut files, mut first) = (Vec::new(), None);
        for shard in &inventory.used {
            let url = shard.place.url()?;
            let mut file = PartitionedFile::new(String::new(), shard.bytes);
            file.object_meta.location = store::key(&url)?;
            files.push(file);
            let beginning = url[..Position::BeforePath].to_owned();
            let (other, place) = first.get_or_insert_with(|| (beginning.clone(), &shard.place));
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
            files,
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

    /// Filters are given to the scan later, by the optimizer of physical plans.
    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        let format = ParquetFormat::default();
        let source = format.file_source(TableSchema::from(schema()));
        let files = FileGroup::new(self.files.clone());
        let config = FileScanConfigBuilder::new(self.store.clone(), source)
            .with_file_groups(files.split_files(state.config().target_partitions()))
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        format.create_physical_plan(state, config).await
    }
}
