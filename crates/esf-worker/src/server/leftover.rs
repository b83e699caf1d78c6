//! Pipes that outlive the command they were made for, because a process it left behind holds them.
//! Policy: such a process lives on; what it writes is kept in the command's log, within its quota, and
//! belongs to no result. One thread waits for all of them.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::event::epoll;

use crate::server::running::locked;
use crate::spool::Spool;
use crate::wire::CHUNK;

type Adopted = Mutex<HashMap<u64, (OwnedFd, Spool)>>;

/// The pipes left over.
pub(crate) struct Leftovers {
    epoll: Arc<OwnedFd>,
    adopted: Arc<Adopted>,
    next: Mutex<u64>,
}

impl Leftovers {
    /// Starts the thread; it ends with the process.
    pub(crate) fn start() -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let adopted = Arc::<Adopted>::default();
        let (waiting, held) = (Arc::clone(&epoll), Arc::clone(&adopted));
        std::thread::Builder::new().name("leftovers".to_owned()).spawn(move || run(&waiting, &held))?;
        Ok(Self { epoll, adopted, next: Mutex::new(0) })
    }

    /// Goes on draining `pipe` into `spool` until nobody holds it.
    pub(crate) fn adopt(&self, pipe: OwnedFd, spool: Spool) {
        let token = {
            let mut next = locked(&self.next);
            *next += 1;
            *next
        };
        let mut adopted = locked(&self.adopted);
        let data = epoll::EventData::new_u64(token);
        // Without room for another watch the pipe closes, as if its reader had gone.
        if epoll::add(&*self.epoll, &pipe, data, epoll::EventFlags::IN).is_ok() {
            adopted.insert(token, (pipe, spool));
        }
    }
}

fn run(epoll: &OwnedFd, adopted: &Adopted) {
    let mut events = Vec::with_capacity(64);
    let mut buffer = vec![0; CHUNK];
    loop {
        events.clear();
        match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "leftover pipes are no longer drained");
                return;
            }
        }
        let mut adopted = locked(adopted);
        for event in &events {
            let token = event.data.u64();
            let Some((pipe, spool)) = adopted.get_mut(&token) else { continue };
            match rustix::io::read(&*pipe, &mut buffer) {
                Ok(length) if length > 0 => spool.append(&buffer[..length]),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                // The end, or an error: closing the pipe takes it out of the epoll set.
                Ok(_) | Err(_) => drop(adopted.remove(&token)),
            }
        }
    }
}
