//! Records that `perf record -z` compressed.
//!
//! perf feeds its ring buffers to one zstd stream and flushes it now and then; what comes out is cut into
//! records of type 81 (or 83) that follow each other in the file. Put together, their contents are the
//! stream, and what the stream holds are records; one may begin in one part and end in the next. perf does
//! not end the stream's frame when it is done, so an empty last block is put after it here. There may be
//! several frames.
//!
//! A few bytes can represent very many. More than [`MOST`] for each are not believed.

use std::io::Read;

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::Wrong;

/// Bytes that one compressed byte may represent. Recordings are compressed to a third, or a thirtieth if the
/// program does one thing only.
const MOST: usize = 4096;

/// Header of an empty block that is the last one of its frame.
const LAST_BLOCK: [u8; 3] = [1, 0, 0];

/// Unpacks the parts of the stream.
pub(super) fn unpack(parts: &[&[u8]]) -> Result<Vec<u8>, Wrong> {
    let mut packed = parts.concat();
    let most = packed.len().saturating_mul(MOST);
    let size = packed.len();
    packed.extend(LAST_BLOCK);
    let mut rest = &packed[..];
    let mut out = Vec::new();
    let wrong = |at: usize, what: &dyn std::fmt::Display| {
        Wrong::new(
            at,
            format!(
                "the compressed records cannot be unpacked after {at} of their {size} bytes: {what}"
            ),
        )
    };
    // What is left when the frames were ended properly is the block that was put after.
    while rest.len() > LAST_BLOCK.len() {
        let at = packed.len() - rest.len();
        let mut decoder = FrameDecoder::new();
        decoder.init(&mut rest).map_err(|e| wrong(at, &e))?;
        while !decoder.is_finished() {
            let at = packed.len() - rest.len();
            decoder
                .decode_blocks(&mut rest, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(|e| wrong(at, &e))?;
            decoder.read_to_end(&mut out).map_err(|e| wrong(at, &e))?;
            if out.len() > most {
                return Err(wrong(at, &format!("more than {MOST} bytes for each")));
            }
        }
        decoder
            .read_to_end(&mut out)
            .map_err(|e| wrong(packed.len() - rest.len(), &e))?;
    }
    Ok(out)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails may panic")]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    fn text() -> Vec<u8> {
        (0..200_000u32)
            .flat_map(|i| (i / 3).to_le_bytes())
            .collect()
    }

    #[test]
    fn a_stream_may_be_cut_anywhere_and_have_several_frames() {
        let text = text();
        let mut packed = compress_to_vec(&text[..], CompressionLevel::Fastest);
        packed.extend(compress_to_vec(
            &b"more"[..],
            CompressionLevel::Uncompressed,
        ));
        let parts: Vec<&[u8]> = packed.chunks(4093).collect();
        assert_eq!(unpack(&parts).unwrap(), [&text[..], b"more"].concat());
    }

    #[test]
    fn a_frame_that_was_flushed_but_not_ended_is_unpacked_wholly() {
        // Raw block of 3 bytes, not the last one.
        let mut packed = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
        packed.extend([3 << 3, 0, 0, b'a', b'b', b'c']);
        assert_eq!(unpack(&[&packed]).unwrap(), b"abc");
    }

    #[test]
    fn damage_is_an_error() {
        let packed = compress_to_vec(&text()[..], CompressionLevel::Fastest);
        assert!(unpack(&[&packed[..packed.len() / 2]]).is_err());
        assert!(unpack(&[b"this is not zstd at all"]).is_err());
    }
}
