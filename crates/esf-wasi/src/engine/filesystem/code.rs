//! From what the union says to what a guest is told. Nothing is allocated for a refusal.

use rustix::io::Errno;
use wasmtime::component::ResourceTableError;

use super::types::ErrorCode;

/// Why a call is refused: a code for the guest, or a fault of the guest's that ends it.
#[derive(Debug)]
#[expect(unreachable_pub, reason = "the generated module exports it by name")]
pub enum Refusal {
    /// Told to the guest.
    Code(ErrorCode),
    /// Ends the guest.
    Trap(wasmtime::Error),
}

/// What a call gives.
pub(super) type Answer<T> = Result<T, Refusal>;

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        Self::Code(code)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Code(code(errno))
    }
}

impl From<ResourceTableError> for Refusal {
    fn from(error: ResourceTableError) -> Self {
        match error {
            ResourceTableError::Full => Self::Code(ErrorCode::InsufficientMemory),
            other => Self::Trap(other.into()),
        }
    }
}

/// The standard's word for an error of the system. Descriptors that have run out are memory that has.
pub(super) fn code(errno: Errno) -> ErrorCode {
    match errno {
        Errno::ACCESS => ErrorCode::Access,
        Errno::AGAIN => ErrorCode::WouldBlock,
        Errno::ALREADY => ErrorCode::Already,
        Errno::BADF => ErrorCode::BadDescriptor,
        Errno::BUSY => ErrorCode::Busy,
        Errno::DEADLK => ErrorCode::Deadlock,
        Errno::DQUOT => ErrorCode::Quota,
        Errno::EXIST => ErrorCode::Exist,
        Errno::FBIG => ErrorCode::FileTooLarge,
        Errno::ILSEQ => ErrorCode::IllegalByteSequence,
        Errno::INPROGRESS => ErrorCode::InProgress,
        Errno::INTR => ErrorCode::Interrupted,
        Errno::INVAL => ErrorCode::Invalid,
        Errno::ISDIR => ErrorCode::IsDirectory,
        Errno::LOOP => ErrorCode::Loop,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => ErrorCode::InsufficientMemory,
        Errno::MLINK => ErrorCode::TooManyLinks,
        Errno::NAMETOOLONG => ErrorCode::NameTooLong,
        Errno::NODEV => ErrorCode::NoDevice,
        Errno::NOENT => ErrorCode::NoEntry,
        Errno::NOLCK => ErrorCode::NoLock,
        Errno::NOSPC => ErrorCode::InsufficientSpace,
        Errno::NOSYS | Errno::NOTSUP => ErrorCode::Unsupported,
        Errno::NOTDIR => ErrorCode::NotDirectory,
        Errno::NOTEMPTY => ErrorCode::NotEmpty,
        Errno::NXIO => ErrorCode::NoSuchDevice,
        Errno::OVERFLOW => ErrorCode::Overflow,
        Errno::PERM => ErrorCode::NotPermitted,
        Errno::PIPE => ErrorCode::Pipe,
        Errno::ROFS => ErrorCode::ReadOnly,
        Errno::SPIPE => ErrorCode::InvalidSeek,
        Errno::TXTBSY => ErrorCode::TextFileBusy,
        Errno::XDEV => ErrorCode::CrossDevice,
        _ => ErrorCode::Io,
    }
}
