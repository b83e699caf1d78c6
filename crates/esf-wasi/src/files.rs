//! Files in and out of a live attempt, through its host.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use esf_worker::executor::{FileEntry, Files, OpenFile, Upload};
use esf_worker::kernel_files;

use crate::sandbox::{WasiSandbox, unexpected};
use crate::wire::{Answer, Channel, Finish, Request};

/// Bytes of an upload in one message.
const PIECE: usize = 1 << 20;

impl WasiSandbox {
    /// Asks about files.
    fn ask(&self, request: &Request) -> io::Result<Channel> {
        self.child.ask(request, &[]).map_err(|error| io::Error::other(error.to_string()))
    }

    /// A path inside, as one of the tree.
    fn in_tree(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.view.in_tree(path).ok_or_else(|| rustix::io::Errno::NOENT.into())
    }
}

impl Files for WasiSandbox {
    fn open(&self, path: &Path) -> io::Result<OpenFile> {
        let channel = self.ask(&Request::Open { path: self.in_tree(path)? })?;
        match self.child.answer(&channel)? {
            (Answer::Opened { mode }, descriptors) => {
                let file = descriptors.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
                Ok(OpenFile { mode, ..kernel_files::regular(file)? })
            }
            (other, _) => Err(of_answer(&other)),
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Upload + '_>> {
        let path = self.in_tree(path)?;
        let beside = kernel_files::beside(Path::new(OsStr::from_bytes(&path)))?;
        let temporary = beside.as_os_str().as_bytes().to_vec();
        let channel = self.ask(&Request::Create { temporary, path })?;
        done(self.child.answer(&channel)?.0)?;
        Ok(Box::new(Sending { sandbox: self, channel, finished: false }))
    }

    fn list(&self, path: &Path, each: &mut dyn FnMut(FileEntry) -> io::Result<()>) -> io::Result<()> {
        let channel = self.ask(&Request::List { path: self.in_tree(path)? })?;
        loop {
            match self.child.answer(&channel)?.0 {
                Answer::Entries(entries) => entries.into_iter().try_for_each(&mut *each)?,
                other => return done(other),
            }
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let channel = self.ask(&Request::Remove { path: self.in_tree(path)? })?;
        done(self.child.answer(&channel)?.0)
    }
}

/// An upload on its way through the host.
struct Sending<'a> {
    sandbox: &'a WasiSandbox,
    channel: Channel,
    finished: bool,
}

impl Sending<'_> {
    fn finish(&mut self, how: &Finish) -> io::Result<()> {
        self.finished = true;
        self.channel.send(how, &[])?;
        done(self.sandbox.child.answer(&self.channel)?.0)
    }
}

impl Upload for Sending<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes.chunks(PIECE).try_for_each(|piece| {
            self.channel.send_plain(piece)?;
            done(self.sandbox.child.answer(&self.channel)?.0)
        })
    }

    fn publish(mut self: Box<Self>, mode: u32) -> io::Result<()> {
        self.finish(&Finish::Publish { mode })
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = self.finish(&Finish::Abandon)
        {
            tracing::warn!(attempt = %self.sandbox.attempt, %error, "an upload was not taken back");
        }
    }
}

fn done(answer: Answer) -> io::Result<()> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(of_answer(&other)),
    }
}

fn of_answer(answer: &Answer) -> io::Error {
    match answer {
        Answer::Failed { errno: 0 } => {
            io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
        }
        Answer::Failed { errno } => io::Error::from_raw_os_error(*errno),
        other => io::Error::other(unexpected(other).to_string()),
    }
}
