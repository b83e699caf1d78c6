//! `renew`: a heartbeat. A lease that somebody else ended meanwhile is refused; one that merely ran
//! out is renewed, since nobody took it.

use crate::id::LeaseId;
use crate::ops::{BootClock, start};
use crate::record::{Lease, LeaseStatus};

/// What a heartbeat brings.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Renewed {
    /// The leases that are held, renewed.
    pub held: Vec<Lease>,
    /// The leases that are not held any more: their holder must stop.
    pub fenced: Vec<LeaseId>,
}

/// The lease after a heartbeat at `clock`, or `None` when it is fenced.
pub fn decide(lease: &Lease, clock: &BootClock, lease_ms: u64) -> Option<Lease> {
    match lease.status {
        LeaseStatus::Held if lease.boot_id == clock.boot_id => {
            Some(Lease { lease_ms, expires_at: start::expiry(clock.millis, lease_ms), ..lease.clone() })
        }
        LeaseStatus::Held | LeaseStatus::Released | LeaseStatus::Lapsed => None,
    }
}
