//! Stores of objects by their URLs: this machine's files, and with the feature `s3` buckets of everything that speaks
//! S3. Endpoint, region and keys are those of the environment (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, …) of each
//! process: an executor of a cluster has its own, and nothing of them travels.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use anyhow::{Context, Result};
use datafusion::common::{DataFusionError, exec_err};
use datafusion::execution::object_store::ObjectStoreRegistry;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use url::{Position, Url};

/// All stores of this process, so that connections are used again.
static STORES: LazyLock<Arc<Stores>> = LazyLock::new(Arc::default);

/// Stores that were asked for, by the beginning of their URLs.
#[derive(Debug, Default)]
pub struct Stores(Mutex<HashMap<String, Arc<dyn ObjectStore>>>);

/// The stores of this process.
pub fn stores() -> Arc<Stores> {
    STORES.clone()
}

/// The store of an object, and the object's name in it.
pub fn find(url: &Url) -> Result<(Arc<dyn ObjectStore>, Path)> {
    let store = STORES
        .get_store(url)
        .with_context(|| format!("{url}: cannot open its store"))?;
    Ok((store, key(url)?))
}

/// The name of an object in its store.
pub fn key(url: &Url) -> Result<Path> {
    Path::from_url_path(url.path()).with_context(|| format!("{url}: no name of an object"))
}

/// The URL of another object in the same store.
pub fn url_of(store: &Url, key: &Path) -> Url {
    let mut url = store.clone();
    url.set_query(None);
    if let Ok(mut segments) = url.path_segments_mut() {
        segments
            .clear()
            .extend(key.parts().map(|part| part.as_ref().to_owned()));
    }
    url
}

impl ObjectStoreRegistry for Stores {
    fn register_store(
        &self,
        url: &Url,
        store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(beginning(url).to_owned(), store)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>, DataFusionError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = known.get(beginning(url)) {
            return Ok(store.clone());
        }
        let store: Arc<dyn ObjectStore> = match (url.scheme(), url.host_str()) {
            ("file", _) => Arc::new(LocalFileSystem::new()),
            #[cfg(feature = "s3")]
            ("s3", Some(bucket)) => Arc::new(bucket_store(bucket)?),
            (scheme, _) => {
                return exec_err!(
                    "{url}: this program was built without stores of the scheme {scheme}"
                );
            }
        };
        known.insert(beginning(url).to_owned(), store.clone());
        Ok(store)
    }
}

fn beginning(url: &Url) -> &str {
    &url[..Position::BeforePath]
}

#[cfg(feature = "s3")]
fn bucket_store(bucket: &str) -> object_store::Result<object_store::aws::AmazonS3> {
    use object_store::RetryConfig;
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    // Who names an endpoint of http means it.
    let endpoints = [AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::S3Endpoint];
    let endpoints = endpoints.map(|key| builder.get_config_value(&key).unwrap_or_default());
    if endpoints.iter().any(|url| url.starts_with("http://")) {
        builder = builder.with_allow_http(true);
    }
    let retry = RetryConfig {
        max_retries: 5,
        ..RetryConfig::default()
    };
    builder.with_retry(retry).build()
}
