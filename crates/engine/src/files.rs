//! A child's files, each on a connection of its own.

use session::{
    FileInfo, FileList, FileReader, FileWriter, ListFiles, MakeDir, MoveFile, ReadFile, RemoveFile, SessionError,
    StatFile, WriteFile,
};

use crate::child::Child;

impl Child {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// When the child is gone, or [`SessionError::Refused`], whose code says why; as for all that is done with files.
    pub fn read_file(&self, request: &ReadFile) -> Result<FileReader, SessionError> {
        self.connect()?.read_file(request)
    }

    /// Begins to write a file, which is there when [`FileWriter::finish`] has returned and not before.
    ///
    /// # Errors
    /// As [`Self::read_file`].
    pub fn write_file(&self, request: &WriteFile) -> Result<FileWriter, SessionError> {
        self.connect()?.write_file(request)
    }

    /// Lists what is below a directory, as it comes.
    ///
    /// # Errors
    /// As [`Self::read_file`].
    pub fn list_files(&self, request: &ListFiles) -> Result<FileList, SessionError> {
        self.connect()?.list_files(request)
    }

    /// Tells what a file is; a link is not followed.
    ///
    /// # Errors
    /// As [`Self::read_file`].
    pub fn stat_file(&self, request: &StatFile) -> Result<FileInfo, SessionError> {
        self.connect()?.stat_file(request)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Self::read_file`].
    pub fn make_dir(&self, request: &MakeDir) -> Result<FileInfo, SessionError> {
        self.connect()?.make_dir(request)
    }

    /// Moves a file or a directory.
    ///
    /// # Errors
    /// As [`Self::read_file`].
    pub fn move_file(&self, request: &MoveFile) -> Result<FileInfo, SessionError> {
        self.connect()?.move_file(request)
    }

    /// Removes a file or a directory.
    ///
    /// # Errors
    /// As [`Self::read_file`].
    pub fn remove_file(&self, request: &RemoveFile) -> Result<(), SessionError> {
        self.connect()?.remove_file(request)
    }
}
