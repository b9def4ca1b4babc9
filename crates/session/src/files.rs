//! Files of the guest: read and written as streams, listed piece by piece.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use proto::codec::{Channel, Frame, read_frame};
use proto::guest::{
    FileInfo, FileRequest, ListFiles, MakeDir, MoveFile, ReadFile, RemoveFile, Reply, Request, StatFile, WriteFile,
};

use crate::connection::REPLY_PATIENCE;
use crate::exec::chunk;
use crate::feed::Feed;
use crate::transport::Until;
use crate::{Connection, SessionError, Transport};

/// How long a large tree may take to be removed, or a large file to be carried to another file system.
const TREE_PATIENCE: Duration = Duration::from_secs(600);

impl Connection {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when it cannot be read; its code says why, as for all that is done with files.
    pub fn read_file(self, request: &ReadFile) -> Result<FileReader, SessionError> {
        match self.file(FileRequest::Read(request.clone()), REPLY_PATIENCE)? {
            Reply::File(info) => Ok(FileReader { info, incoming: Incoming::new(self), rest: VecDeque::new() }),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }

    /// Begins to write a file, which is there when [`FileWriter::finish`] has returned and not before.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when it cannot be written there.
    pub fn write_file(self, request: &WriteFile) -> Result<FileWriter, SessionError> {
        match self.file(FileRequest::Write(request.clone()), REPLY_PATIENCE)? {
            Reply::Done => Ok(FileWriter { feed: Feed::new(self.into_transport(), REPLY_PATIENCE) }),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }

    /// Begins to list what is below a directory.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when it is none, or cannot be listed.
    pub fn list_files(self, request: &ListFiles) -> Result<FileList, SessionError> {
        let first = self.file(FileRequest::List(request.clone()), REPLY_PATIENCE)?;
        let mut list = FileList { incoming: Incoming::new(self), rest: VecDeque::new() };
        list.begin(first)?;
        Ok(list)
    }

    /// Tells what a file is.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when there is none.
    pub fn stat_file(&mut self, request: &StatFile) -> Result<FileInfo, SessionError> {
        self.expect_file(FileRequest::Stat(request.clone()), REPLY_PATIENCE)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when it cannot be made.
    pub fn make_dir(&mut self, request: &MakeDir) -> Result<FileInfo, SessionError> {
        self.expect_file(FileRequest::MakeDir(request.clone()), REPLY_PATIENCE)
    }

    /// Moves a file or a directory.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when it cannot be moved.
    pub fn move_file(&mut self, request: &MoveFile) -> Result<FileInfo, SessionError> {
        self.expect_file(FileRequest::Move(request.clone()), TREE_PATIENCE)
    }

    /// Removes a file or a directory.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when it cannot be removed; of a directory, some may be gone then.
    pub fn remove_file(&mut self, request: &RemoveFile) -> Result<(), SessionError> {
        match self.file(FileRequest::Remove(request.clone()), TREE_PATIENCE)? {
            Reply::Done => Ok(()),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }

    fn file(&self, op: FileRequest, patience: Duration) -> Result<Reply, SessionError> {
        self.ask(&Request::File { op }, patience)
    }

    fn expect_file(&self, op: FileRequest, patience: Duration) -> Result<FileInfo, SessionError> {
        match self.file(op, patience)? {
            Reply::File(info) => Ok(info),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }
}

/// What an agent sends in many pieces. Dropped before its end it hangs up, and the agent stops.
#[derive(Debug)]
struct Incoming {
    transport: Arc<Transport>,
    over: bool,
}

impl Incoming {
    fn new(connection: Connection) -> Self {
        Self { transport: connection.into_transport(), over: false }
    }

    /// The next piece; none after the last.
    fn next(&mut self) -> Result<Option<Piece>, SessionError> {
        if self.over {
            return Ok(None);
        }
        let mut until = Until::new(&self.transport, REPLY_PATIENCE);
        let frame = read_frame(&mut until).map_err(|error| SessionError::from_codec(error, REPLY_PATIENCE));
        let piece = frame.and_then(|frame| Piece::of(frame.ok_or_else(SessionError::closed)?));
        match &piece {
            Ok(Some(_)) => {}
            Ok(None) => self.over = true,
            Err(_) => self.hang_up(),
        }
        piece
    }

    fn hang_up(&mut self) {
        self.over = true;
        // Fails when the agent is gone already, which is what was wanted.
        drop(self.transport.hang_up());
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.over {
            self.hang_up();
        }
    }
}

enum Piece {
    Bytes(Vec<u8>),
    Files(Vec<FileInfo>),
}

impl Piece {
    fn of(frame: Frame) -> Result<Option<Self>, SessionError> {
        match frame.channel {
            Channel::Stdout => Ok(Some(Self::Bytes(chunk(frame)?))),
            Channel::Message => match frame.message()? {
                Reply::Files { files } => Ok(Some(Self::Files(files))),
                Reply::Done => Ok(None),
                Reply::Error { code, message } => Err(SessionError::Refused { code, message }),
                reply => Err(SessionError::unexpected(&reply)),
            },
            found @ (Channel::Stdin | Channel::Stderr) => Err(SessionError::unexpected(&found)),
        }
    }
}

/// A file's bytes.
#[derive(Debug)]
pub struct FileReader {
    /// What the file was when it was opened.
    pub info: FileInfo,
    incoming: Incoming,
    rest: VecDeque<u8>,
}

impl FileReader {
    /// The next bytes; none at the end. Mixes well with reading.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when the file cannot be read further, [`SessionError::Lost`] when the VM goes away.
    pub fn next_chunk(&mut self) -> Result<Option<Vec<u8>>, SessionError> {
        if !self.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rest).into()));
        }
        match self.incoming.next()? {
            Some(Piece::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Piece::Files(files)) => Err(SessionError::unexpected(&files)),
            None => Ok(None),
        }
    }
}

impl Read for FileReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.next_chunk().map_err(io::Error::other)? {
                Some(bytes) => self.rest = bytes.into(),
                None => return Ok(0),
            }
        }
        self.rest.read(buf)
    }
}

/// A file that is being written. Dropped before it is finished, it never was.
#[derive(Debug)]
pub struct FileWriter {
    feed: Feed,
}

impl FileWriter {
    /// Sends some of the bytes; how many.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when the guest cannot write them, and nothing is left of the file then.
    pub fn send(&mut self, bytes: &[u8]) -> Result<usize, SessionError> {
        self.feed.send(bytes)
    }

    /// Puts the file into its place; what it is then.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn finish(mut self) -> Result<FileInfo, SessionError> {
        match self.feed.finish()? {
            Reply::File(info) => Ok(info),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }
}

impl Write for FileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The files below a directory, as they come. After an error there are no more.
#[derive(Debug)]
pub struct FileList {
    incoming: Incoming,
    rest: VecDeque<FileInfo>,
}

impl FileList {
    fn begin(&mut self, first: Reply) -> Result<(), SessionError> {
        match first {
            Reply::Files { files } => self.rest = files.into(),
            Reply::Done => self.incoming.over = true,
            reply => return Err(SessionError::unexpected(&reply)),
        }
        Ok(())
    }
}

impl Iterator for FileList {
    type Item = Result<FileInfo, SessionError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.rest.is_empty() {
            match self.incoming.next() {
                Ok(Some(Piece::Files(files))) => self.rest = files.into(),
                Ok(Some(Piece::Bytes(_))) => {
                    self.incoming.hang_up();
                    return Some(Err(SessionError::unexpected(&Channel::Stdout)));
                }
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        self.rest.pop_front().map(Ok)
    }
}
