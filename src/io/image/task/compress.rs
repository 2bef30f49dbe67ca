//! Compresses a file, in this process.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use flate2::write::GzEncoder;
use liblzma::write::XzEncoder;
use tokio_util::sync::CancellationToken;

use super::digest::{CHUNK, Sums, blocking, read_all};
use super::error::StepError;
use super::watch::Gauge;
use super::{Input, Made, Site};
use crate::core::image::pipeline::Compression;

const GZIP: u32 = 6;
const ZSTD: i32 = 3;
const XZ: u32 = 6;

/// Compresses.
///
/// # Errors
/// The disk is full, or the like.
pub(super) async fn run(site: &Site<'_>, algorithm: Compression, input: &Input) -> Result<Made, StepError> {
    let size = input.size()?;
    let part = site.directory.empty_part(site.number, site.name)?;
    let (from, to) = (input.path.clone(), part.join("data"));
    let gauge = site.watch.gauge().clone();
    blocking(site.cancel, move |cancel| {
        let digest = compress(algorithm, &from, &to, size, &gauge, cancel)?;
        Ok(Made { path: to, digest })
    })
    .await
}

fn compress(
    algorithm: Compression,
    from: &Path,
    to: &Path,
    size: u64,
    gauge: &Gauge,
    cancel: &CancellationToken,
) -> Result<String, StepError> {
    let failed = |error: io::Error| StepError::file("writing", to, &error);
    let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(to).map_err(failed)?;
    let sink = Summed { file: BufWriter::with_capacity(CHUNK, file), sums: Sums::for_checksum(None) };
    let pass = |encoder: &mut dyn Write| {
        let mut done = 0;
        read_all(from, cancel, |bytes| {
            encoder.write_all(bytes).map_err(failed)?;
            done += bytes.len() as u64;
            gauge.set(done, Some(size));
            Ok(())
        })
    };
    let sink = match algorithm {
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(sink, flate2::Compression::new(GZIP));
            pass(&mut encoder)?;
            encoder.finish()
        }
        Compression::Zstd => {
            let mut encoder = zstd::Encoder::new(sink, ZSTD).map_err(failed)?;
            encoder.include_checksum(true).and_then(|()| encoder.set_pledged_src_size(Some(size))).map_err(failed)?;
            pass(&mut encoder)?;
            encoder.finish()
        }
        Compression::Xz => {
            let mut encoder = XzEncoder::new(sink, XZ);
            pass(&mut encoder)?;
            encoder.finish()
        }
    };
    let mut sink = sink.map_err(failed)?;
    sink.file.flush().map_err(failed)?;
    Ok(sink.sums.digest())
}

/// Writes, and computes the digest of what is written.
struct Summed {
    file: BufWriter<File>,
    sums: Sums,
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.sums.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
