//! A lease: the durable, fenced right of one worker to one attempt (design section 4).
//! Invariant: expiry is on the state plane's own boot clock; a lease of another boot is expired.

use serde::{Deserialize, Serialize};

use crate::id::{AttemptId, LeaseId, NodeId, WorkerId};
use crate::record::text_forms;
use crate::time::{BootMillis, Timestamp};

/// Where a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseStatus {
    /// The worker holds it.
    Held,
    /// The attempt ended and gave it back.
    Released,
    /// The holder was gone; the epoch was bumped.
    Lapsed,
}

text_forms!(LeaseStatus { Held = "held", Released = "released", Lapsed = "lapsed" });

/// One lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its id.
    pub lease_id: LeaseId,
    /// The attempt it fences.
    pub attempt_id: AttemptId,
    /// The node of that attempt.
    pub node_id: NodeId,
    /// Who holds it.
    pub worker_id: WorkerId,
    /// The epoch that every write under it carries.
    pub epoch: u64,
    /// Where it stands.
    pub status: LeaseStatus,
    /// For how many milliseconds it was granted or last renewed.
    pub lease_ms: u64,
    /// When it expires, on the boot clock of `boot_id`.
    pub expires_at: BootMillis,
    /// The boot in which it was granted.
    pub boot_id: String,
    /// When it was granted.
    pub granted_at: Timestamp,
    /// When it was released or lapsed.
    pub ended_at: Option<Timestamp>,
}

impl Lease {
    /// Whether the holder's time is over at `millis` of the boot `boot_id`.
    pub fn expired(&self, boot_id: &str, millis: BootMillis) -> bool {
        self.boot_id != boot_id || self.expires_at <= millis
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_expires_every_lease_and_a_wall_clock_none() {
        let lease = Lease {
            lease_id: LeaseId::from_bytes([1; 16]),
            attempt_id: AttemptId::from_bytes([2; 16]),
            node_id: NodeId::from_bytes([3; 16]),
            worker_id: WorkerId::from_bytes([4; 16]),
            epoch: 1,
            status: LeaseStatus::Held,
            lease_ms: 10,
            expires_at: BootMillis(10),
            boot_id: "boot".to_owned(),
            granted_at: Timestamp(0),
            ended_at: None,
        };
        assert!(!lease.expired("boot", BootMillis(9)));
        assert!(lease.expired("boot", BootMillis(10)));
        assert!(lease.expired("other", BootMillis(0)));
    }
}
