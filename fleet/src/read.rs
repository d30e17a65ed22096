//! The rows of one shard after another, without an engine.
//!
//! Most shards are small: a thousand rows or a hundred. An engine plans each of them, asks for its footer, its
//! statistics and its pages one by one, and adapts its schema; that takes ten times as long as decoding the rows. Here
//! a shard of up to 8 MiB is one read of the file, or one request, and larger ones are read by row groups. What follows
//! from a schema is kept from file to file, since nearly all have the same; footers are decoded without statistics
//! where nothing asks for them; and a thread decompresses with one context.
//!
//! Columns are found by name: files of other tools may have them in another order, and others beside them. Every
//! number of a footer is checked before it is used to read.

use std::cell::{Cell, RefCell};
use std::io::{Cursor, Read};
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use datafusion::arrow::array::{Array, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups};
use datafusion::parquet::arrow::{
    FieldLevels, ProjectionMask, parquet_to_arrow_field_levels, parquet_to_arrow_schema,
};
use datafusion::parquet::basic::Compression;
use datafusion::parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use datafusion::parquet::errors::{ParquetError, Result as ParquetResult};
use datafusion::parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetStatisticsPolicy,
    RowGroupMetaData,
};
use datafusion::parquet::file::reader::{ChunkReader, Length};
use datafusion::parquet::file::serialized_reader::SerializedPageReader;
use datafusion::parquet::file::statistics::Statistics;
use datafusion::parquet::schema::types::SchemaDescriptor;
use futures::{StreamExt, stream};
use object_store::ObjectStoreExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc::Receiver;
use url::Url;
use zstd::bulk::Decompressor;

use crate::place::Place;
use crate::schema::column;
use crate::shard::{self, OBJECTS_AT_ONCE, SMALL, Shard};
use crate::store;

/// Rows of a batch at most.
const BATCH: usize = 8192;

/// A file of rows: as much as is needed of a [`Shard`].
#[derive(Clone, Debug)]
pub struct Input {
    pub place: Place,
    pub bytes: u64,
    pub rows: u64,
}

impl From<&Shard> for Input {
    fn from(shard: &Shard) -> Input {
        Input {
            place: shard.place.clone(),
            bytes: shard.bytes,
            rows: shard.rows,
        }
    }
}

/// Rows of a shard that come together.
pub struct Rows {
    /// The number of the first of them in the shard.
    pub first: u64,
    /// The columns that were asked for, in that order.
    pub batch: RecordBatch,
}

/// Reads some columns of shards.
pub struct Reader {
    /// What the batches have.
    schema: SchemaRef,
    /// What follows from the schema of the last file.
    known: Option<Known>,
    footers: ParquetMetaDataOptions,
    /// The only build whose rows are wanted.
    build: Option<String>,
    runtime: Handle,
}

struct Known {
    descriptor: Arc<SchemaDescriptor>,
    levels: FieldLevels,
    /// Where the columns of a batch are among those that are read.
    order: Vec<usize>,
    /// The leaves that are read.
    leaves: Vec<usize>,
    /// The leaf of build-ids.
    builds: Option<usize>,
}

impl Reader {
    /// A reader of columns with these names and types, which are those of [`crate::schema::schema`], but that strings
    /// may be dictionaries. Must be called where a runtime is.
    pub fn new(schema: SchemaRef) -> Reader {
        Reader {
            schema,
            known: None,
            footers: without_statistics(),
            build: None,
            runtime: Handle::current(),
        }
    }

    /// Passes over row groups that have no row of this build, by their statistics. Others may come nevertheless.
    pub fn only(mut self, build: String) -> Reader {
        self.footers = ParquetMetaDataOptions::new()
            .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll)
            .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll);
        self.build = Some(build);
        self
    }

    /// Gives `each` the rows of a shard in their order, until it says no. `whole` is the file, where it was read
    /// already.
    pub fn read(
        &mut self,
        file: &Input,
        whole: Option<Bytes>,
        each: &mut dyn FnMut(Rows) -> Result<bool>,
    ) -> Result<()> {
        let place = &file.place;
        let source = match whole {
            Some(bytes) => Source::Whole(bytes),
            None => self.open(file)?,
        };
        let footer = source.footer(file, &self.footers, &self.runtime)?;
        self.learn(place, &footer)?;
        let Some(known) = &self.known else {
            bail!("{place}: no schema");
        };
        let mut first = 0u64;
        for (number, group) in footer.row_groups().iter().enumerate() {
            let rows = rows_of(place, number, group)?;
            if rows == 0 {
                continue;
            }
            if let (Some(build), Some(leaf)) = (&self.build, known.builds)
                && !may_have(group, leaf, build)
            {
                first += rows as u64;
                continue;
            }
            let failed = || format!("{place}: in row group {number}");
            let range = range_of(file, number, group, &known.leaves)?;
            let window = source.window(file, range, &self.runtime)?;
            let group = Group {
                window: Arc::new(window),
                footer: &footer,
                group,
                rows,
            };
            let size = BATCH.min(rows);
            let mut batches = guarded(|| {
                ParquetRecordBatchReader::try_new_with_row_groups(&known.levels, &group, size, None)
            })
            .with_context(failed)?;
            while let Some(batch) = guarded(|| batches.next().transpose()).with_context(failed)? {
                let batch = batch.project(&known.order)?;
                let columns = batch.columns().to_vec();
                // The types are compared here, once for each batch: what follows relies on them.
                let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                let batch =
                    RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
                        .map_err(|error| damaged(place, first, &batch, &self.schema, error))?;
                let count = batch.num_rows() as u64;
                if !each(Rows { first, batch })? {
                    return Ok(());
                }
                first += count;
            }
        }
        if first != file.rows {
            bail!(
                "{place}: {first} rows were read, and its footer says {}",
                file.rows
            );
        }
        Ok(())
    }

    fn open(&self, file: &Input) -> Result<Source> {
        let place = &file.place;
        Ok(match place {
            Place::Path(path) if file.bytes <= SMALL => Source::Whole(whole(path)?),
            Place::Path(path) => Source::File(
                std::fs::File::open(path).with_context(|| format!("{place}: cannot open"))?,
            ),
            Place::Object(_) => Source::Object,
        })
    }

    fn learn(&mut self, place: &Place, footer: &ParquetMetaData) -> Result<()> {
        let descriptor = footer.file_metadata().schema_descr_ptr();
        if let Some(known) = &self.known
            && (Arc::ptr_eq(&known.descriptor, &descriptor) || known.descriptor == descriptor)
        {
            return Ok(());
        }
        let failed = || format!("{place}: its schema");
        let found = parquet_to_arrow_schema(&descriptor, None).with_context(failed)?;
        let mut roots = Vec::new();
        let mut hints: Vec<Field> = found.fields().iter().map(|f| f.as_ref().clone()).collect();
        for wanted in self.schema.fields() {
            let at = found.index_of(wanted.name()).with_context(failed)?;
            roots.push(at);
            if let Some(hint) = hints.get_mut(at)
                && *hint.data_type() == DataType::Utf8
            {
                *hint = hint.clone().with_data_type(wanted.data_type().clone());
            }
        }
        let mask = ProjectionMask::roots(&descriptor, roots.iter().copied());
        let leaves = (0..descriptor.num_columns()).filter(|leaf| mask.leaf_included(*leaf));
        let leaves = leaves.collect();
        let hints = Fields::from(hints);
        let levels = parquet_to_arrow_field_levels(&descriptor, mask, Some(&hints));
        let levels = levels.with_context(failed)?;
        // Those that are read come in the order of the file.
        let mut sorted = roots.clone();
        sorted.sort_unstable();
        let order = roots
            .iter()
            .map(|root| sorted.binary_search(root).unwrap_or(0));
        let builds = (0..descriptor.num_columns())
            .find(|leaf| descriptor.column(*leaf).path().parts() == [column::BUILD_ID]);
        self.known = Some(Known {
            builds,
            order: order.collect(),
            descriptor,
            levels,
            leaves,
        });
        Ok(())
    }
}

thread_local! {
    /// Whether a panic of this thread is an error that is told elsewhere.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// What the reader of Parquet gives. On damaged pages it may panic: that is an error as well, and says nothing more.
fn guarded<T, E: Into<anyhow::Error>>(read: impl FnOnce() -> Result<T, E>) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let other = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                other(info);
            }
        }));
    });
    GUARDED.set(true);
    // What it was about to read is dropped with it.
    let read = std::panic::catch_unwind(AssertUnwindSafe(read));
    GUARDED.set(false);
    match read {
        Ok(read) => read.map_err(Into::into),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            Err(anyhow!(
                "damaged pages: {}",
                text.unwrap_or("the reader failed")
            ))
        }
    }
}

/// Whether a row group can have rows of a build, by the least and the largest that are in it. Both may be cut, to what
/// is less than the least and more than the largest.
fn may_have(group: &RowGroupMetaData, leaf: usize, build: &str) -> bool {
    let statistics = group
        .columns()
        .get(leaf)
        .and_then(|column| column.statistics());
    // Of old, other tools compared bytes with signs.
    let statistics = match statistics {
        Some(known @ Statistics::ByteArray(values)) if !known.is_min_max_deprecated() => values,
        _ => return true,
    };
    let build = build.as_bytes();
    statistics.min_opt().is_none_or(|min| min.data() <= build)
        && statistics.max_opt().is_none_or(|max| build <= max.data())
}

/// Options of footers without what is not used.
pub fn without_statistics() -> ParquetMetaDataOptions {
    ParquetMetaDataOptions::new()
        .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
}

/// Why rows do not have the types of the schema: the only way is a null where none may be.
fn damaged(
    place: &Place,
    first: u64,
    batch: &RecordBatch,
    schema: &Schema,
    error: ArrowError,
) -> anyhow::Error {
    for (column, field) in batch.columns().iter().zip(schema.fields()) {
        let null = (0..column.len()).find(|row| column.is_null(*row));
        if let (Some(row), false) = (null, field.is_nullable()) {
            let row = first + row as u64;
            return anyhow!(
                "{place}: row {row} has no {}, which must not be null",
                field.name()
            );
        }
    }
    anyhow!(error).context(format!("{place}: from row {first} on"))
}

/// All bytes of a small file.
pub fn whole(path: &Path) -> Result<Bytes> {
    let bytes = std::fs::read(path).with_context(|| format!("{}: cannot read", path.display()))?;
    Ok(bytes.into())
}

/// Where the bytes of a shard come from.
enum Source {
    Whole(Bytes),
    File(std::fs::File),
    Object,
}

impl Source {
    fn footer(
        &self,
        file: &Input,
        options: &ParquetMetaDataOptions,
        runtime: &Handle,
    ) -> Result<ParquetMetaData> {
        let (place, size) = (&file.place, file.bytes);
        if let Source::Whole(bytes) = self {
            let found = bytes.len() as u64;
            if found != size {
                bail!("{place}: had {size} bytes when it was checked, and has {found} now");
            }
            return shard::footer_in(place, bytes, options);
        }
        let tail = self.range(file, size.saturating_sub(8)..size, runtime)?;
        let length = shard::footer_length(place, &tail, size)?;
        let at = size - 8 - length;
        let bytes = self.range(file, at..size - 8, runtime)?;
        shard::decode(place, &bytes, at, options)
    }

    fn range(&self, file: &Input, range: std::ops::Range<u64>, runtime: &Handle) -> Result<Bytes> {
        use std::os::unix::fs::FileExt;
        let place = &file.place;
        let failed = || {
            let (from, to) = (range.start, range.end);
            format!("{place}: cannot read the bytes {from:#x} to {to:#x}")
        };
        match (self, place) {
            (Source::Whole(bytes), _) => {
                let (from, to) = (range.start as usize, range.end as usize);
                if from > to || to > bytes.len() {
                    bail!("{}, it has {}", failed(), bytes.len());
                }
                Ok(bytes.slice(from..to))
            }
            (Source::File(open), _) => {
                // It is not more than the file has.
                let mut bytes = vec![0; (range.end - range.start) as usize];
                open.read_exact_at(&mut bytes, range.start)
                    .with_context(failed)?;
                Ok(bytes.into())
            }
            (Source::Object, Place::Object(url)) => {
                let (store, key) = store::find(url)?;
                let bytes = runtime.block_on(store.get_range(&key, range.clone()));
                bytes.with_context(failed)
            }
            (Source::Object, Place::Path(_)) => bail!("{place}: no object"),
        }
    }

    fn window(
        &self,
        file: &Input,
        range: std::ops::Range<u64>,
        runtime: &Handle,
    ) -> Result<Window> {
        Ok(Window {
            start: range.start,
            bytes: self.range(file, range, runtime)?,
        })
    }
}

fn rows_of(place: &Place, number: usize, group: &RowGroupMetaData) -> Result<usize> {
    let rows = group.num_rows();
    usize::try_from(rows).map_err(|_| anyhow!("{place}: row group {number} has {rows} rows"))
}

/// Where the pages of some columns of a row group are, all in one.
fn range_of(
    file: &Input,
    number: usize,
    group: &RowGroupMetaData,
    leaves: &[usize],
) -> Result<std::ops::Range<u64>> {
    let (mut from, mut to) = (u64::MAX, 0);
    for leaf in leaves {
        let wrong = |what: String| {
            let place = &file.place;
            anyhow!("{place}: row group {number}, column {leaf}: {what}")
        };
        let column = group.columns().get(*leaf);
        let column = column.ok_or_else(|| wrong(format!("of {} columns", group.num_columns())))?;
        let start = column
            .dictionary_page_offset()
            .unwrap_or(column.data_page_offset());
        let length = column.compressed_size();
        let range = u64::try_from(start).ok().zip(u64::try_from(length).ok());
        let end = range.and_then(|(start, length)| start.checked_add(length));
        match (range, end) {
            (Some((start, _)), Some(end)) if end <= file.bytes => {
                from = from.min(start);
                to = to.max(end);
            }
            _ => {
                return Err(wrong(format!(
                    "{length} bytes from {start} on, and the file has {}",
                    file.bytes
                )));
            }
        }
    }
    Ok(from.min(to)..to)
}

/// A part of a file.
struct Window {
    start: u64,
    bytes: Bytes,
}

impl Window {
    fn from(&self, start: u64) -> ParquetResult<Bytes> {
        let at = start.checked_sub(self.start).map(|at| at as usize);
        match at {
            Some(at) if at <= self.bytes.len() => Ok(self.bytes.slice(at..)),
            _ => Err(self.outside(start, 0)),
        }
    }

    fn outside(&self, start: u64, length: usize) -> ParquetError {
        ParquetError::EOF(format!(
            "{length} bytes at {start:#x}, and the columns are at {:#x} to {:#x}",
            self.start,
            self.len()
        ))
    }
}

impl Length for Window {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for Window {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Cursor<Bytes>> {
        self.from(start).map(Cursor::new)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let bytes = self.from(start)?;
        if length > bytes.len() {
            return Err(self.outside(start, length));
        }
        Ok(bytes.slice(..length))
    }
}

/// One row group.
struct Group<'a> {
    window: Arc<Window>,
    footer: &'a ParquetMetaData,
    group: &'a RowGroupMetaData,
    rows: usize,
}

impl RowGroups for Group<'_> {
    fn num_rows(&self) -> usize {
        self.rows
    }

    fn column_chunks(&self, leaf: usize) -> ParquetResult<Box<dyn PageIterator>> {
        let column = self.group.columns().get(leaf);
        let column = column.ok_or_else(|| ParquetError::General(format!("no column {leaf}")))?;
        let window = self.window.clone();
        let pages: Box<dyn PageReader> = match column.compression() {
            Compression::ZSTD(_) => Box::new(Pages::new(window, column, self.rows)?),
            _ => Box::new(SerializedPageReader::new(window, column, self.rows, None)?),
        };
        Ok(Box::new(Chunk(Some(pages))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.group))
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.footer
    }
}

/// The pages of one column of one row group.
struct Chunk(Option<Box<dyn PageReader>>);

impl Iterator for Chunk {
    type Item = ParquetResult<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageIterator for Chunk {}

/// The pages of a column that is compressed by zstd.
///
/// Parquet's own reader makes a context of zstd for each column of each row group, which asks the processor what it can
/// do; on a virtual machine that alone takes microseconds, eighteen times for each shard. So it is told that nothing is
/// compressed, and a context for each thread does the rest.
struct Pages(SerializedPageReader<Window>);

impl Pages {
    fn new(window: Arc<Window>, column: &ColumnChunkMetaData, rows: usize) -> ParquetResult<Pages> {
        let as_it_is = column
            .clone()
            .into_builder()
            .set_compression(Compression::UNCOMPRESSED)
            .build()?;
        Ok(Pages(SerializedPageReader::new(
            window, &as_it_is, rows, None,
        )?))
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let page = self.0.get_next_page()?;
        page.map(decompressed).transpose()
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.0.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.0.skip_next_page()
    }
}

impl Iterator for Pages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

fn decompressed(mut page: Page) -> ParquetResult<Page> {
    match &mut page {
        Page::DictionaryPage { buf, .. } | Page::DataPage { buf, .. } => *buf = inflated(&[], buf)?,
        Page::DataPageV2 {
            buf,
            def_levels_byte_len,
            rep_levels_byte_len,
            is_compressed: true,
            ..
        } => {
            // What says which values are null is in front, and is not compressed.
            let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
            if levels > buf.len() {
                return Err(ParquetError::EOF(format!(
                    "a page of {} bytes with {levels} bytes of levels",
                    buf.len()
                )));
            }
            let (levels, values) = buf.split_at(levels);
            *buf = inflated(levels, values)?;
        }
        Page::DataPageV2 { .. } => {}
    }
    Ok(page)
}

thread_local! {
    /// The context of this thread, once it needs one.
    static ZSTD: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Bytes, and after them others that were compressed, which may be none at all.
fn inflated(before: &[u8], compressed: &[u8]) -> ParquetResult<Bytes> {
    if compressed.is_empty() {
        return Ok(Bytes::copy_from_slice(before));
    }
    let size = zstd::zstd_safe::get_frame_content_size(compressed);
    let size = size
        .ok()
        .flatten()
        .and_then(|size| usize::try_from(size).ok());
    // The size of a page is 31 bits in its header.
    if let Some(size) = size.filter(|size| *size <= i32::MAX as usize) {
        let mut out = vec![0; before.len() + size];
        let (levels, values) = out.split_at_mut(before.len());
        levels.copy_from_slice(before);
        let done = ZSTD.with_borrow_mut(|zstd| -> std::io::Result<usize> {
            let zstd = match zstd {
                Some(zstd) => zstd,
                None => zstd.insert(Decompressor::new()?),
            };
            zstd.decompress_to_buffer(compressed, values)
        });
        if done.is_ok_and(|done| done == size) {
            return Ok(out.into());
        }
    }
    // It does not say how much it is, or is in several parts.
    let mut out = before.to_vec();
    let mut values = zstd::stream::read::Decoder::new(compressed)?.take(i32::MAX as u64);
    values.read_to_end(&mut out)?;
    Ok(out.into())
}

/// A small object, by the number of its file.
type Fetched = (usize, Result<Bytes>);

/// Files that no thread has read yet.
pub struct Queue<I> {
    files: I,
    next: AtomicUsize,
    /// Small objects, of which several are fetched at once, since a store takes long to begin an answer.
    fetched: Option<Mutex<Receiver<Fetched>>>,
}

impl<I: Deref<Target = [Input]>> Queue<I> {
    /// Of all these files. Must be called where a runtime is.
    pub fn new(files: I) -> Queue<I> {
        let small = |file: &Input| match &file.place {
            Place::Object(url) if file.bytes <= SMALL => Some(url.clone()),
            _ => None,
        };
        let urls: Vec<Option<Url>> = files.iter().map(small).collect();
        let fetched = urls.iter().any(Option::is_some).then(|| {
            let (sender, receiver) = tokio::sync::mpsc::channel(1);
            tokio::spawn(async move {
                let urls = urls.into_iter().enumerate();
                let urls = urls.filter_map(|(at, url)| Some((at, url?)));
                let fetch = |(at, url): (usize, Url)| async move { (at, fetch(&url).await) };
                let mut all = stream::iter(urls).map(fetch).buffered(OBJECTS_AT_ONCE);
                while let Some(one) = all.next().await {
                    // Nobody waits any more where another file could not be read.
                    if sender.send(one).await.is_err() {
                        return;
                    }
                }
            });
            Mutex::new(receiver)
        });
        Queue {
            files,
            next: AtomicUsize::new(0),
            fetched,
        }
    }

    /// The next, with its bytes if they are here. Must not be called by a task of a runtime.
    pub fn next(&self) -> Result<Option<(&Input, Option<Bytes>)>> {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = self.files.get(at) else {
                break;
            };
            if matches!(file.place, Place::Path(_)) || file.bytes > SMALL {
                return Ok(Some((file, None)));
            }
        }
        let Some(fetched) = &self.fetched else {
            return Ok(None);
        };
        let one = fetched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .blocking_recv();
        let Some((at, bytes)) = one else {
            return Ok(None);
        };
        let file = self.files.get(at).context("a file that nobody asked for")?;
        Ok(Some((file, Some(bytes?))))
    }
}

async fn fetch(url: &Url) -> Result<Bytes> {
    let (store, key) = store::find(url)?;
    let failed = || format!("{url}: cannot read");
    let answer = store.get(&key).await.with_context(failed)?;
    answer.bytes().await.with_context(failed)
}
