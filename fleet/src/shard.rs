//! Shards: Parquet files of rows, written whole or not at all, and checked before they are believed.
//!
//! A shard's name is `ID.HASH.parquet`. The id (32 hexadecimal digits) is a hash of what its rows say, so that the same
//! profile gives the same id whatever wrote the file; the hash (16 digits) is XXH3 of the file's bytes, so that every
//! damage is found before a count is used. A file that other tools wrote may have any name; it is believed if Parquet's
//! own structure is whole.
//!
//! A file that `merge` wrote carries the ids of all shards that were added up in it. [`Inventory::select`] takes of any
//! set of files each shard exactly once: a file whose shards are all in another file is left out, and two files that
//! have some shards in common, each with others beside them, are an error. So a merge that was stopped after it wrote
//! its result, and before its inputs were deleted, changes no sum.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, anyhow, bail};
use datafusion::arrow::array::RecordBatch;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_writer::ArrowWriterOptions;
use datafusion::parquet::basic::{Compression, Encoding, ZstdLevel};
use datafusion::parquet::file::metadata::{
    KeyValue, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
};
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use datafusion::parquet::schema::types::{ColumnPath, SchemaDescriptor};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use rayon::prelude::*;
use url::Url;
use xxhash_rust::xxh3::Xxh3;

use crate::cluster::Cluster;
use crate::place::Place;
use crate::progress::Progress;
use crate::read::without_statistics;
use crate::schema::{
    DAYS_KEY, ROWS_KEY, SHARDS_KEY, VERSION, VERSION_KEY, column, day_text, parse_day, schema,
};
use crate::store;

/// Rows that are compressed together: few enough to be in memory many times, and to be passed over by statistics.
const ROW_GROUP: usize = 1 << 17;
/// Hexadecimal digits of an id.
pub const ID_DIGITS: usize = 32;
/// In front of a place that stands for the id of a file of other tools: no hexadecimal digit.
const OF_PLACE: &str = "path:";
/// Bytes of a file or an object that is read whole, an object by one request: all of most shards.
pub const SMALL: u64 = 8 << 20;
/// Bytes at the end of an object that have the footer of most shards.
const TAIL: u64 = 64 << 10;
/// Files that are worth a job of a cluster, which takes as long to begin as checking some of them.
const MANY: usize = 256;
/// Objects that are read at once, since a store takes long to begin an answer.
pub const OBJECTS_AT_ONCE: usize = 32;

fn properties() -> Result<WriterProperties> {
    // Addresses rise, since rows are sorted by them, or are near the one before. Strings and labels repeat.
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(9)?))
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_created_by("postlink-fleet".into());
    for name in [column::FROM_ADDRESS, column::TO_ADDRESS] {
        let path = ColumnPath::from(name);
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    Ok(properties.build())
}

/// Passes bytes on and hashes them.
struct Hashing<W> {
    out: W,
    hash: Xxh3,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// A shard that is being written: a temporary in its folder until [`Writer::finish`]. If that is not reached, nothing
/// is left.
pub struct Writer {
    folder: PathBuf,
    temporary: tempfile::NamedTempFile,
    parquet: ArrowWriter<Hashing<BufWriter<File>>>,
    rows: u64,
}

impl Writer {
    /// Begins a file in a folder, which is made if it is not there.
    pub fn new(folder: &Path) -> Result<Writer> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot make the folder", folder.display()))?;
        use std::os::unix::fs::PermissionsExt;
        let temporary = tempfile::Builder::new()
            .prefix(".postlink-fleet-")
            .suffix(".tmp")
            .permissions(std::fs::Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .with_context(|| format!("{}: cannot make a file in it", folder.display()))?;
        let out = Hashing {
            out: BufWriter::with_capacity(1 << 18, temporary.as_file().try_clone()?),
            hash: Xxh3::new(),
        };
        // The schema of Arrow says nothing that Parquet's does not, and would be a fifth of a small file.
        let options = ArrowWriterOptions::new()
            .with_properties(properties()?)
            .with_skip_arrow_metadata(true);
        Ok(Writer {
            folder: folder.to_owned(),
            temporary,
            parquet: ArrowWriter::try_new_with_options(out, schema(), options)?,
            rows: 0,
        })
    }

    /// Adds rows, which must continue in the order of the sort.
    pub fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.rows += rows.num_rows() as u64;
        let folder = self.folder.display();
        self.parquet
            .write(rows)
            .with_context(|| format!("{folder}: cannot write a shard"))
    }

    /// Ends the file and gives it its name, after `id` (the one of the only shard, or of all that were merged).
    pub fn finish(mut self, id: &str, shards: &[String], days: (i32, i32)) -> Result<PathBuf> {
        let days = format!("{}/{}", day_text(days.0), day_text(days.1));
        for (key, value) in [
            (VERSION_KEY, VERSION.to_string()),
            (ROWS_KEY, self.rows.to_string()),
            (DAYS_KEY, days),
            (SHARDS_KEY, shards.concat()),
        ] {
            let pair = KeyValue::new(key.to_owned(), value);
            self.parquet.append_key_value_metadata(pair);
        }
        let folder = self.folder.clone();
        let failed = || format!("{}: cannot write a shard", folder.display());
        let mut out = self.parquet.into_inner().with_context(failed)?;
        out.flush().with_context(failed)?;
        let hash = out.hash.digest();
        self.temporary.as_file().sync_all().with_context(failed)?;
        let path = folder.join(format!("{id}.{hash:016x}.parquet"));
        self.temporary
            .persist(&path)
            .with_context(|| format!("{}: cannot give the file its name", path.display()))?;
        Ok(path)
    }
}

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    pub place: Place,
    /// The ids of what was added up in it, sorted. Of files of other tools: made of its place.
    pub ids: Vec<String>,
    pub rows: u64,
    pub bytes: u64,
    /// First and last day, if it says so.
    pub days: Option<(i32, i32)>,
}

impl Shard {
    /// The ids as a file has them: none of a file of other tools.
    #[cfg(feature = "cluster")]
    pub fn written_ids(&self) -> Option<String> {
        let is_made = self.ids.iter().any(|id| id.starts_with(OF_PLACE));
        (!is_made).then(|| self.ids.concat())
    }

    /// The ids of a file, by what it has of them.
    pub fn ids_of(place: &Place, written: Option<&str>) -> Result<Vec<String>, String> {
        match written {
            None => Ok(vec![format!("{OF_PLACE}{place}")]),
            Some(text) => ids(text),
        }
    }
}

/// Reads what a file says of itself and checks it whole.
pub fn open(path: &Path) -> Result<Shard> {
    let place = Place::from(path.to_owned());
    let mut file = File::open(path).with_context(|| format!("{place}: cannot open"))?;
    let size = file.metadata()?.len();
    if size <= SMALL {
        let mut bytes = Vec::with_capacity(size as usize + 1);
        file.read_to_end(&mut bytes)
            .with_context(|| format!("{place}: cannot read"))?;
        return open_bytes(place, &bytes);
    }
    let footer = footer(&place, &mut file, size)?;
    if let Some(expected) = hash_in(&place.name()) {
        file.seek(SeekFrom::Start(0))?;
        let (mut hash, mut buffer) = (Xxh3::new(), vec![0; 1 << 18]);
        loop {
            let read = file
                .read(&mut buffer)
                .with_context(|| format!("{place}: cannot read"))?;
            if read == 0 {
                break;
            }
            hash.update(buffer.get(..read).unwrap_or_default());
        }
        check_hash(&place, &hash, expected)?;
    }
    describe(place, size, &footer)
}

/// The same of a file that is in memory.
fn open_bytes(place: Place, bytes: &[u8]) -> Result<Shard> {
    let footer = footer_in(&place, bytes, &without_statistics())?;
    if let Some(expected) = hash_in(&place.name()) {
        let mut hash = Xxh3::new();
        hash.update(bytes);
        check_hash(&place, &hash, expected)?;
    }
    describe(place, bytes.len() as u64, &footer)
}

/// The same of an object.
async fn open_object(url: &Url) -> Result<Shard> {
    let failed = || format!("{url}: cannot read");
    let (store, key) = store::find(url)?;
    let answer = store.get(&key).await.with_context(failed)?;
    let size = answer.meta.size;
    let place = Place::Object(url.clone());
    if size <= SMALL {
        return open_bytes(place, &answer.bytes().await.with_context(failed)?);
    }
    let length = {
        let tail = store.get_range(&key, size - 8..size).await;
        footer_length(&place, &tail.with_context(failed)?, size)?
    };
    let at = size - 8 - length;
    let bytes = store.get_range(&key, at..size - 8).await;
    let footer = decode(
        &place,
        &bytes.with_context(failed)?,
        at,
        &without_statistics(),
    )?;
    if let Some(expected) = hash_in(&place.name()) {
        let mut hash = Xxh3::new();
        let mut bytes = answer.into_stream();
        while let Some(some) = bytes.try_next().await.with_context(failed)? {
            hash.update(&some);
        }
        check_hash(&place, &hash, expected)?;
    }
    describe(place, size, &footer)
}

/// The hash in a file's name, if it is one of ours.
fn hash_in(name: &str) -> Option<&str> {
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        [id, hash, "parquet"] if id.len() == ID_DIGITS && hash.len() == 16 => Some(hash),
        _ => None,
    }
}

fn describe(place: Place, size: u64, footer: &ParquetMetaData) -> Result<Shard> {
    let say = |key: &str| {
        let pairs = footer.file_metadata().key_value_metadata();
        let pair = pairs.and_then(|pairs| pairs.iter().find(|pair| pair.key == key));
        pair.and_then(|pair| pair.value.clone())
    };
    let wrong = |what: String| anyhow!("{place}: in the footer: {what}");
    let version = say(VERSION_KEY).ok_or_else(|| {
        wrong(format!(
            "no {VERSION_KEY}: this Parquet file has another schema than fleet profiles"
        ))
    })?;
    if version != VERSION.to_string() {
        return Err(wrong(format!(
            "{VERSION_KEY} is {version:?}, this program reads {VERSION}"
        )));
    }
    let counted = footer.file_metadata().num_rows();
    let rows = u64::try_from(counted).map_err(|_| wrong(format!("{counted} rows")))?;
    let sum = footer.row_groups().iter().map(|group| group.num_rows());
    let sum = sum.fold(0i64, i64::saturating_add);
    if sum != counted {
        return Err(wrong(format!(
            "{counted} rows, and {sum} in its row groups"
        )));
    }
    if let Some(said) = say(ROWS_KEY)
        && said != rows.to_string()
    {
        return Err(wrong(format!(
            "{ROWS_KEY} is {said:?}, and there are {rows} rows"
        )));
    }
    check_columns(&place, footer)?;
    let days = match say(DAYS_KEY) {
        None => None,
        Some(text) => {
            let (first, last) = text
                .split_once('/')
                .ok_or_else(|| wrong(format!("{DAYS_KEY} is {text:?}, must be two days and /")))?;
            Some((
                parse_day(first).map_err(|e| wrong(format!("{DAYS_KEY}: {e}")))?,
                parse_day(last).map_err(|e| wrong(format!("{DAYS_KEY}: {e}")))?,
            ))
        }
    };
    let ids = Shard::ids_of(&place, say(SHARDS_KEY).as_deref());
    let ids = ids.map_err(|what| wrong(format!("{SHARDS_KEY}: {what}")))?;
    Ok(Shard {
        place,
        ids,
        rows,
        bytes: size,
        days,
    })
}

fn ids(text: &str) -> Result<Vec<String>, String> {
    let digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if let Some(at) = text.as_bytes().iter().position(|byte| !digit(byte)) {
        return Err(format!("no hexadecimal digit at {at}"));
    }
    if text.is_empty() || !text.len().is_multiple_of(ID_DIGITS) {
        return Err(format!(
            "{} digits, must be {ID_DIGITS} for each shard",
            text.len()
        ));
    }
    let mut ids: Vec<String> = text
        .as_bytes()
        .chunks(ID_DIGITS)
        .map(|id| String::from_utf8_lossy(id).into_owned())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn footer(name: &dyn Display, file: &mut (impl Read + Seek), size: u64) -> Result<ParquetMetaData> {
    let failed = || format!("{name}: cannot read");
    let mut tail = vec![0; size.min(8) as usize];
    file.seek(SeekFrom::Start(size - tail.len() as u64))
        .and_then(|_| file.read_exact(&mut tail))
        .with_context(failed)?;
    let length = footer_length(name, &tail, size)?;
    let at = size - 8 - length;
    // Not more than the file has.
    let mut bytes = vec![0; length as usize];
    file.seek(SeekFrom::Start(at))
        .and_then(|_| file.read_exact(&mut bytes))
        .with_context(failed)?;
    decode(name, &bytes, at, &without_statistics())
}

/// The footer of a file that is in memory.
pub fn footer_in(
    name: &dyn Display,
    bytes: &[u8],
    options: &ParquetMetaDataOptions,
) -> Result<ParquetMetaData> {
    let size = bytes.len() as u64;
    let tail = bytes.get(bytes.len().saturating_sub(8)..);
    let length = footer_length(name, tail.unwrap_or_default(), size)?;
    let at = size - 8 - length;
    let footer = bytes.get(at as usize..bytes.len() - 8);
    decode(name, footer.unwrap_or_default(), at, options)
}

/// The length of the footer of a file that ends with these bytes.
pub fn footer_length(name: &dyn Display, tail: &[u8], size: u64) -> Result<u64> {
    let &[a, b, c, d, ref magic @ ..] = tail else {
        bail!("{name}: cut short: {size} bytes, a Parquet file has at least 12");
    };
    if size < 12 {
        bail!("{name}: cut short: {size} bytes, a Parquet file has at least 12");
    }
    if *magic != *b"PAR1" {
        bail!(
            "{name} at offset {:#x}: the file ends with \"{}\" where \"PAR1\" must be: cut short, or no Parquet file",
            size - 4,
            magic.escape_ascii()
        );
    }
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    if length > size - 12 {
        bail!(
            "{name} at offset {:#x}: the length of the footer is {length}, and the file has {size} bytes",
            size - 8
        );
    }
    Ok(length)
}

/// What the bytes of a footer say, which is at an offset.
pub fn decode(
    name: &dyn Display,
    footer: &[u8],
    at: u64,
    options: &ParquetMetaDataOptions,
) -> Result<ParquetMetaData> {
    ParquetMetaDataReader::decode_metadata_with_options(footer, Some(options))
        .with_context(|| format!("{name} at offset {at:#x}: damaged footer"))
}

fn check_hash(name: &dyn Display, hash: &Xxh3, expected: &str) -> Result<()> {
    let found = format!("{:016x}", hash.digest());
    if found != expected {
        bail!(
            "{name}: damaged: its name says that the hash of its bytes is {expected}, and it is {found}"
        );
    }
    Ok(())
}

fn check_columns(name: &dyn Display, footer: &ParquetMetaData) -> Result<()> {
    use datafusion::parquet::arrow::parquet_to_arrow_schema;
    // Nearly all have the schema of the first.
    static GOOD: OnceLock<Arc<SchemaDescriptor>> = OnceLock::new();
    let descriptor = footer.file_metadata().schema_descr_ptr();
    if GOOD.get().is_some_and(|good| **good == *descriptor) {
        return Ok(());
    }
    let found = parquet_to_arrow_schema(footer.file_metadata().schema_descr(), None)
        .with_context(|| format!("{name}: its schema"))?;
    for field in schema().fields() {
        let same = found.field_with_name(field.name());
        match same {
            Ok(same) if same.data_type() == field.data_type() => {}
            Ok(same) => bail!(
                "{name}: the column {} is of type {}, must be {}",
                field.name(),
                same.data_type(),
                field.data_type()
            ),
            Err(_) => bail!("{name}: has no column {}", field.name()),
        }
    }
    // It stays the first.
    let _ = GOOD.set(descriptor);
    Ok(())
}

/// The files that a command reads.
#[derive(Debug, Default)]
pub struct Inventory {
    /// Each shard once.
    pub used: Vec<Shard>,
    /// Files whose shards are all in others.
    pub repeated: Vec<Place>,
    /// Damaged files that were left out, and what is wrong with them.
    pub damaged: Vec<(Place, String)>,
}

impl Inventory {
    /// Looks at files, and at all in folders whose names end in `.parquet`. Many are checked on a cluster, if there is
    /// one.
    pub async fn read(
        places: &[Place],
        skip_damaged: bool,
        cluster: Option<&Cluster>,
        progress: &Progress,
    ) -> Result<Inventory> {
        let mut all = Vec::new();
        for place in places {
            place.shards(&mut all).await?;
        }
        all.sort_unstable();
        all.dedup();
        let mut inventory = Inventory::default();
        let mut shards = Vec::new();
        progress.begin("files opened", all.len() as u64);
        let found = match cluster {
            Some(cluster) if all.len() >= MANY => cluster.check(all, progress).await?,
            _ => check(all, progress).await,
        };
        for (place, opened) in found {
            match opened {
                Ok(shard) => shards.push(shard),
                Err(error) if skip_damaged => {
                    inventory.damaged.push((place, format!("{error:#}")));
                }
                Err(error) => {
                    return Err(error.context(
                        "a shard cannot be used (--skip-damaged goes on without it and says so)",
                    ));
                }
            }
        }
        inventory.select(shards)?;
        Ok(inventory)
    }

    /// The ids of all shards in a folder, by what the files say of themselves.
    pub async fn names(folder: &Place) -> Result<Vec<String>> {
        let mut all = Vec::new();
        folder.shards(&mut all).await?;
        let progress = Progress::default();
        let all = each(all, names_in, names_of, &progress).await;
        let ids: Result<Vec<Vec<String>>> = all.into_iter().map(|(_, ids)| ids).collect();
        Ok(ids?.concat())
    }

    fn select(&mut self, mut shards: Vec<Shard>) -> Result<()> {
        // What holds most comes first, so that what it holds is known when its parts come.
        shards.sort_by(|a, b| (b.ids.len(), &a.place).cmp(&(a.ids.len(), &b.place)));
        let mut taken: HashMap<String, usize> = HashMap::new();
        for shard in shards {
            let known = shard.ids.iter().filter(|id| taken.contains_key(*id));
            let known: Vec<&String> = known.collect();
            match known.first() {
                None => {
                    let at = self.used.len();
                    taken.extend(shard.ids.iter().map(|id| (id.clone(), at)));
                    self.used.push(shard);
                }
                Some(_) if known.len() == shard.ids.len() => self.repeated.push(shard.place),
                Some(id) => {
                    let other = taken.get(*id).and_then(|at| self.used.get(*at));
                    bail!(
                        "{} and {} have {} shards in common ({id} is one), and each has others: their sum would count these twice",
                        other
                            .map(|other| other.place.to_string())
                            .unwrap_or_default(),
                        shard.place,
                        known.len()
                    );
                }
            }
        }
        self.used.sort_by(|a, b| a.place.cmp(&b.place));
        self.repeated.sort_unstable();
        Ok(())
    }

    /// The ids of all shards, sorted.
    pub fn ids(&self) -> Vec<String> {
        let ids = self.used.iter().flat_map(|shard| shard.ids.iter().cloned());
        let mut ids: Vec<String> = ids.collect();
        ids.sort_unstable();
        ids
    }
}

/// What files say of themselves, which are checked whole.
pub async fn check(all: Vec<Place>, progress: &Progress) -> Vec<(Place, Result<Shard>)> {
    each(all, open, open_object, progress).await
}

/// What is found of each place, in the order of the places: files by threads, objects by requests that overlap.
async fn each<T: Send>(
    all: Vec<Place>,
    of_file: fn(&Path) -> Result<T>,
    of_object: impl AsyncFn(&Url) -> Result<T>,
    progress: &Progress,
) -> Vec<(Place, Result<T>)> {
    let first_object = all.partition_point(|place| matches!(place, Place::Path(_)));
    let (files, objects) = all.split_at(first_object);
    let of_files = files.par_iter().map(|place| {
        let found = match place {
            Place::Path(path) => of_file(path),
            Place::Object(url) => Err(anyhow!("{url}: no file")),
        };
        progress.did();
        found
    });
    let mut found: Vec<Result<T>> = of_files.collect();
    let of_object = &of_object;
    let of_objects = objects.iter().map(|place| async move {
        let found = match place {
            Place::Object(url) => of_object(url).await,
            Place::Path(path) => Err(anyhow!("{}: no object", path.display())),
        };
        progress.did();
        found
    });
    let of_objects = stream::iter(of_objects).buffered(OBJECTS_AT_ONCE);
    found.extend(of_objects.collect::<Vec<_>>().await);
    all.into_iter().zip(found).collect()
}

fn names_in(path: &Path) -> Result<Vec<String>> {
    let name = path.display();
    let mut file = File::open(path).with_context(|| format!("{name}: cannot open"))?;
    let size = file.metadata()?.len();
    names_by(&name, &footer(&name, &mut file, size)?)
}

/// By one request, if the footer is no longer than most.
async fn names_of(url: &Url) -> Result<Vec<String>> {
    let failed = || format!("{url}: cannot read");
    let (store, key) = store::find(url)?;
    let options = GetOptions {
        range: Some(GetRange::Suffix(TAIL)),
        ..GetOptions::default()
    };
    let answer = store.get_opts(&key, options).await.with_context(failed)?;
    let size = answer.meta.size;
    let bytes = answer.bytes().await.with_context(failed)?;
    let (before, tail) = bytes.split_at(bytes.len().saturating_sub(8));
    let length = footer_length(url, tail, size)?;
    let at = size - 8 - length;
    let footer = match before.len().checked_sub(length as usize) {
        Some(from) => {
            let bytes = before.get(from..).unwrap_or_default();
            decode(url, bytes, at, &without_statistics())?
        }
        None => {
            let bytes = store.get_range(&key, at..size - 8).await;
            decode(url, &bytes.with_context(failed)?, at, &without_statistics())?
        }
    };
    names_by(url, &footer)
}

fn names_by(name: &dyn Display, footer: &ParquetMetaData) -> Result<Vec<String>> {
    let pairs = footer.file_metadata().key_value_metadata();
    let pair = pairs.and_then(|pairs| pairs.iter().find(|pair| pair.key == SHARDS_KEY));
    let text = pair.and_then(|pair| pair.value.as_deref());
    text.map_or(Ok(vec![]), |text| {
        ids(text).map_err(|what| anyhow!("{name}: in the footer: {SHARDS_KEY}: {what}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(path: &str, ids: &[&str]) -> Shard {
        Shard {
            place: path.into(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            rows: 1,
            bytes: 1,
            days: None,
        }
    }

    #[test]
    fn each_shard_is_taken_once() {
        let mut inventory = Inventory::default();
        inventory
            .select(vec![
                shard("one", &["1"]),
                shard("all", &["1", "2", "3"]),
                shard("four", &["4"]),
                shard("two", &["2"]),
                shard("copy", &["4"]),
            ])
            .unwrap();
        let used: Vec<_> = inventory.used.iter().map(|s| s.place.clone()).collect();
        assert_eq!(used, [Place::from("all"), Place::from("copy")]);
        assert_eq!(inventory.ids(), ["1", "2", "3", "4"]);
        assert_eq!(inventory.repeated, ["four", "one", "two"].map(Place::from));
    }

    #[test]
    fn files_that_overlap_in_part_are_refused() {
        let shards = vec![shard("a", &["1", "2"]), shard("b", &["2", "3"])];
        let error = Inventory::default().select(shards).unwrap_err().to_string();
        assert!(
            error.contains("a and b have 1 shards in common (2 is one)"),
            "{error}"
        );
    }

    #[test]
    fn lists_of_ids_are_checked() {
        assert!(ids("").is_err());
        assert!(ids(&"0".repeat(33)).unwrap_err().contains("33 digits"));
        assert!(ids(&"G".repeat(32)).unwrap_err().contains("at 0"));
        assert_eq!(ids(&"0".repeat(64)).unwrap().len(), 1);
    }
}
