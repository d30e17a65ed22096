//! Where shards are: files and folders, or objects in a store, which have URLs.
//!
//! An object is whole or not there at all, so a file that is uploaded when it is complete keeps the promise that files
//! keep by their temporary names.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, WriteMultipart};
use rayon::prelude::*;
use url::Url;

use crate::shard::OBJECTS_AT_ONCE;
use crate::store;

/// Bytes that are uploaded by one request; larger files in parts.
const AT_ONCE: u64 = 8 << 20;
/// Parts that are under way.
const PARTS: usize = 4;

/// A file or folder, or an object or all objects whose names begin alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Path(PathBuf),
    Object(Url),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Path(path) => path.display().fmt(f),
            Place::Object(url) => url.fmt(f),
        }
    }
}

impl From<PathBuf> for Place {
    fn from(path: PathBuf) -> Place {
        Place::Path(path)
    }
}

impl From<&str> for Place {
    fn from(path: &str) -> Place {
        Place::Path(path.into())
    }
}

impl Place {
    /// As it stands in the command line: a path, or a URL of a scheme that is known.
    pub fn parse(text: OsString) -> Result<Place> {
        let Some((scheme, _)) = text.to_str().and_then(|text| text.split_once("://")) else {
            return Ok(Place::Path(text.into()));
        };
        let is_letter = |c: char| c.is_ascii_alphanumeric();
        if scheme.is_empty() || !scheme.chars().all(is_letter) {
            return Ok(Place::Path(text.into()));
        }
        let shown = text.to_string_lossy();
        let url = Url::parse(&shown).with_context(|| format!("{shown}: no URL"))?;
        match url.scheme() {
            "file" => {
                let path = url.to_file_path();
                let path = path.map_err(|()| anyhow!("{shown}: no file of this machine"))?;
                Ok(Place::Path(path))
            }
            "s3" if url.host_str().is_none_or(str::is_empty) => {
                bail!("{shown}: names no bucket, must be s3://BUCKET/PREFIX")
            }
            "s3" if cfg!(feature = "s3") => Ok(Place::Object(url)),
            "s3" => bail!(
                "{shown}: this program was built without stores of objects (cargo install --path fleet --features s3)"
            ),
            other => bail!("{shown}: the scheme {other} is not known, only file and s3 are"),
        }
    }

    /// The name without folders.
    pub fn name(&self) -> String {
        match self {
            Place::Path(path) => {
                let name = path.file_name().unwrap_or_default();
                name.to_string_lossy().into_owned()
            }
            Place::Object(url) => {
                let last = url.path_segments().and_then(|mut all| all.next_back());
                last.unwrap_or_default().to_owned()
            }
        }
    }

    /// The folder that it is in.
    pub fn parent(&self) -> Place {
        match self {
            Place::Path(path) => Place::Path(path.parent().unwrap_or(Path::new(".")).to_owned()),
            Place::Object(url) => {
                let mut url = url.clone();
                if let Ok(mut segments) = url.path_segments_mut() {
                    segments.pop_if_empty().pop();
                }
                Place::Object(url)
            }
        }
    }

    /// Its URL, which is absolute.
    pub fn url(&self) -> Result<Url> {
        match self {
            Place::Path(path) => Url::from_file_path(path)
                .map_err(|()| anyhow!("{}: no absolute path", path.display())),
            Place::Object(url) => Ok(url.clone()),
        }
    }

    /// The same place under its only name.
    pub fn canonical(&self) -> Result<Place> {
        Ok(match self {
            Place::Path(path) => Place::Path(
                path.canonicalize()
                    .with_context(|| format!("{}: cannot read", path.display()))?,
            ),
            Place::Object(_) => self.clone(),
        })
    }

    /// Removes a file or an object.
    pub async fn remove(&self) -> Result<()> {
        let failed = || format!("{self}: cannot remove");
        match self {
            Place::Path(path) => std::fs::remove_file(path).with_context(failed),
            Place::Object(url) => {
                let (store, key) = store::find(url)?;
                store.delete(&key).await.with_context(failed)
            }
        }
    }

    /// Whether a folder is there. Stores have no folders: one without objects is an empty one.
    pub fn exists(&self) -> bool {
        match self {
            Place::Path(path) => path.exists(),
            Place::Object(_) => true,
        }
    }

    /// All shards of a place: itself, or all below it whose names end in `.parquet`. Names with a point in front are
    /// temporaries of someone.
    pub async fn shards(&self, out: &mut Vec<Place>) -> Result<()> {
        match self {
            Place::Path(path) => files(path, out),
            Place::Object(url) => objects(url, out).await,
        }
    }
}

/// Removes files and objects; all that can be removed are, and the first error is told. Threads do it, and requests
/// that overlap: a file system may let each of them wait, and a store takes long to begin an answer.
pub async fn remove_all(places: &[&Place]) -> Result<()> {
    let remove = |place: &&Place| match place {
        Place::Path(path) => {
            std::fs::remove_file(path).with_context(|| format!("{place}: cannot remove"))
        }
        Place::Object(_) => Ok(()),
    };
    let removed: Vec<Result<()>> = places.par_iter().map(remove).collect();
    let objects = places
        .iter()
        .filter(|place| matches!(place, Place::Object(_)));
    let objects = stream::iter(objects.map(|place| place.remove())).buffered(OBJECTS_AT_ONCE);
    let of_objects: Vec<Result<()>> = objects.collect().await;
    removed.into_iter().chain(of_objects).collect()
}

fn files(place: &Path, out: &mut Vec<Place>) -> Result<()> {
    let failed = || format!("{}: cannot read", place.display());
    if !std::fs::metadata(place).with_context(failed)?.is_dir() {
        out.push(place.canonicalize().with_context(failed)?.into());
        return Ok(());
    }
    let folder = place.canonicalize().with_context(failed)?;
    for entry in std::fs::read_dir(&folder).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let path = entry.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if name.starts_with(b".") {
            continue;
        }
        let is_shard = name.ends_with(b".parquet");
        let kind = entry.file_type().with_context(failed)?;
        if kind.is_file() {
            // There may be a hundred thousand: their only name is known without asking for each.
            if is_shard {
                out.push(path.into());
            }
        } else if path.is_dir() || is_shard {
            files(&path, out)?;
        }
    }
    Ok(())
}

async fn objects(url: &Url, out: &mut Vec<Place>) -> Result<()> {
    if url.path().ends_with(".parquet") {
        out.push(Place::Object(url.clone()));
        return Ok(());
    }
    let (store, prefix) = store::find(url)?;
    let all: Vec<ObjectMeta> = store
        .list(Some(&prefix))
        .try_collect()
        .await
        .with_context(|| format!("{url}: cannot list"))?;
    for object in all {
        let key = object.location;
        let below: Vec<String> = key
            .prefix_match(&prefix)
            .map(|parts| parts.map(|part| part.as_ref().to_owned()).collect())
            .unwrap_or_default();
        if key.as_ref().ends_with(".parquet") && !below.iter().any(|part| part.starts_with('.')) {
            out.push(Place::Object(store::url_of(url, &key)));
        }
    }
    Ok(())
}

/// Where files are written: a folder, or a temporary one from which they are uploaded.
pub struct Output {
    to: Place,
    temporary: Option<tempfile::TempDir>,
}

impl Output {
    /// Nothing is made yet but a temporary folder.
    pub fn new(to: &Place) -> Result<Output> {
        let temporary = match to {
            Place::Path(_) => None,
            Place::Object(_) => Some(
                tempfile::Builder::new()
                    .prefix("postlink-fleet-")
                    .tempdir()
                    .context("cannot make a temporary folder")?,
            ),
        };
        Ok(Output {
            to: to.clone(),
            temporary,
        })
    }

    /// The folder in which a file is written.
    pub fn folder(&self) -> &Path {
        match (&self.to, &self.temporary) {
            (_, Some(temporary)) => temporary.path(),
            (Place::Path(path), None) => path,
            // Not reached: `new` makes one for every object.
            (Place::Object(_), None) => Path::new("."),
        }
    }

    /// Brings a complete file to its place, under the same name.
    pub async fn deliver(&self, path: PathBuf) -> Result<Place> {
        let Place::Object(url) = &self.to else {
            return Ok(path.into());
        };
        let (store, prefix) = store::find(url)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let key = prefix.join(&*name);
        let to = store::url_of(url, &key);
        upload(&store, &key, &path)
            .await
            .with_context(|| format!("{to}: cannot write a shard"))?;
        std::fs::remove_file(&path)
            .with_context(|| format!("{}: cannot remove", path.display()))?;
        Ok(Place::Object(to))
    }
}

async fn upload(
    store: &Arc<dyn ObjectStore>,
    key: &object_store::path::Path,
    path: &Path,
) -> Result<()> {
    use std::io::Read;
    let mut file = std::fs::File::open(path)?;
    let size = file.metadata()?.len();
    if size <= AT_ONCE {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        store.put(key, bytes.into()).await?;
        return Ok(());
    }
    let mut parts = WriteMultipart::new(store.put_multipart(key).await?);
    let mut buffer = vec![0; 1 << 20];
    let sent = async {
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            parts.wait_for_capacity(PARTS).await?;
            parts.write(buffer.get(..read).unwrap_or_default());
        }
    };
    let sent: Result<()> = sent.await;
    match sent {
        Ok(()) => {
            parts.finish().await?;
            Ok(())
        }
        Err(error) => {
            // The first error is the one to tell; parts that stay are the store's to remove.
            let _ = parts.abort().await;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Place> {
        Place::parse(text.into())
    }

    #[test]
    fn paths_stay_paths_and_urls_are_of_a_known_scheme() {
        for path in ["shards", "/a/b", "./s3://x", "a:b", "://x"] {
            assert_eq!(parse(path).unwrap(), Place::Path(path.into()), "{path}");
        }
        assert_eq!(
            parse("file:///a/b%20c").unwrap(),
            Place::Path("/a/b c".into())
        );
        for (wrong, expected) in [
            ("gs://bucket/x", "the scheme gs is not known"),
            ("s3:///x", "names no bucket"),
            ("file://host/x", "no file of this machine"),
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }

    #[test]
    #[cfg(not(feature = "s3"))]
    fn without_the_feature_an_object_is_a_sentence() {
        let error = parse("s3://bucket/x").unwrap_err().to_string();
        assert!(error.contains("--features s3"), "{error}");
    }

    #[test]
    fn names_and_parents_of_objects_are_those_of_their_urls() {
        let object = Place::Object(Url::parse("s3://bucket/a/b.parquet").unwrap());
        assert_eq!(object.name(), "b.parquet");
        assert_eq!(object.parent().to_string(), "s3://bucket/a");
        assert_eq!(object.parent().parent().to_string(), "s3://bucket/");
    }
}
