//! The keeper: the one thread that watches time and death for all live attempts.
//! Invariants: leases are renewed at a third of their length whatever commands do; an attempt whose lease
//! was taken stops; each end runs in a thread of its own, so none delays a heartbeat.

use std::sync::Arc;
use std::time::{Duration, Instant};

use esf_core::AttemptId;
use esf_core::state::AttemptStatus;
use rustix::event::{PollFd, PollFlags};

use crate::clock;
use crate::server::Worker;
use crate::server::live::Live;
use crate::server::running::locked;
use crate::wire::wait;

/// What an attempt is ended for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Died,
    Expired,
    Fenced,
    Stopped,
}

impl Worker {
    /// Runs until the worker is told to stop, or has been idle long enough; then nothing new is admitted.
    pub(crate) fn keep(self: &Arc<Self>) {
        let mut renewed = Instant::now();
        let mut orphans = Some(self.started + Duration::from_millis(self.config.orphan_ms));
        // What was begun already; ends are quick, but a failed seal leaves its attempt on the table.
        let mut ending = Vec::<(AttemptId, Cause)>::new();
        loop {
            let live: Vec<Arc<Live>> = locked(&self.state).live.values().cloned().collect();
            ending.retain(|(id, _)| live.iter().any(|live| live.id() == *id));
            if Instant::now() >= renewed + self.heartbeat() {
                renewed = Instant::now();
                for fenced in self.renew(&live) {
                    self.end(&fenced, Cause::Fenced, &mut ending);
                }
            }
            if orphans.is_some_and(|at| at <= Instant::now()) {
                orphans = None;
                self.give_up_orphans();
            }
            self.look_again();
            if locked(&self.state).stopping {
                live.iter().for_each(|live| self.end(live, Cause::Stopped, &mut ending));
            }
            let now = Instant::now();
            for live in live.iter().filter(|live| live.deadline.is_some_and(|at| at <= now)) {
                self.end(live, Cause::Expired, &mut ending);
            }
            if self.is_over() {
                return;
            }
            let next = self.next_look(&live, &ending, renewed, orphans);
            for dead in self.sleep(&live, &ending, next) {
                self.end(&dead, Cause::Died, &mut ending);
            }
        }
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.config.lease_ms / 3)
    }

    /// Admits who waited for nothing but time.
    fn look_again(&self) {
        let mut state = locked(&self.state);
        if state.again_at.is_some_and(|at| at <= Instant::now()) {
            self.admit(&mut state);
        }
    }

    /// Whether it is time to go. Decided and announced in one step, so that nobody slips in between.
    fn is_over(&self) -> bool {
        let mut state = locked(&self.state);
        if state.stopping {
            return state.live.is_empty() && state.starting.is_empty();
        }
        state.stopping = state.is_idle() && state.busy_until.elapsed() >= self.config.idle_exit;
        state.stopping
    }

    fn next_look(
        &self,
        live: &[Arc<Live>],
        ending: &[(AttemptId, Cause)],
        renewed: Instant,
        orphans: Option<Instant>,
    ) -> Instant {
        let unexpired = live.iter().filter(|live| !ending.contains(&(live.id(), Cause::Expired)));
        let lifetimes = unexpired.filter_map(|live| live.deadline);
        let (idle, again) = {
            let state = locked(&self.state);
            (state.is_idle().then(|| state.busy_until + self.config.idle_exit), state.again_at)
        };
        let heartbeat = renewed + self.heartbeat();
        lifetimes.chain(idle).chain(again).chain(orphans).fold(heartbeat, Instant::min)
    }

    /// Sleeps until `next`, the bell, or a death; returns the dead.
    fn sleep(&self, live: &[Arc<Live>], ending: &[(AttemptId, Cause)], next: Instant) -> Vec<Arc<Live>> {
        let watched: Vec<&Arc<Live>> =
            live.iter().filter(|live| !ending.contains(&(live.id(), Cause::Died))).collect();
        let mut fds = vec![PollFd::new(&self.keeper, PollFlags::IN)];
        fds.extend(watched.iter().map(|live| PollFd::new(&live.died, PollFlags::IN)));
        let left = next.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
        if let Err(error) = wait(&mut fds, Some(u64::try_from(left).unwrap_or(u64::MAX))) {
            tracing::error!(%error, "the keeper cannot wait");
            std::thread::sleep(Duration::from_millis(100));
        }
        let dead = fds[1..].iter().zip(&watched).filter(|(fd, _)| !fd.revents().is_empty());
        let dead = dead.map(|(_, live)| Arc::clone(live)).collect();
        self.keeper.silence();
        dead
    }

    fn end(self: &Arc<Self>, live: &Arc<Live>, cause: Cause, ending: &mut Vec<(AttemptId, Cause)>) {
        if ending.contains(&(live.id(), cause)) {
            return;
        }
        ending.push((live.id(), cause));
        let (worker, ended) = (Arc::clone(self), Arc::clone(live));
        let body = move || match cause {
            Cause::Expired => worker.expire(&ended),
            // Once it was brought to rest its sandbox is gone as it should be.
            Cause::Died => worker.lost(&ended, "the sandbox died by itself", false),
            Cause::Fenced => worker.lost(&ended, "its lease was taken by somebody else", true),
            Cause::Stopped => worker.lost(&ended, "the worker was stopped", true),
        };
        if let Err(error) = std::thread::Builder::new().name("ending".to_owned()).spawn(body) {
            // No thread now: it is still there at the next look.
            tracing::error!(attempt = %live.id(), %error, "cannot end an attempt");
            ending.pop();
        }
    }

    /// Renews all leases; returns the attempts that hold theirs no more.
    fn renew(&self, live: &[Arc<Live>]) -> Vec<Arc<Live>> {
        if live.is_empty() {
            return Vec::new();
        }
        let leases: Vec<_> = live.iter().map(|live| live.lease).collect();
        match self.graph().renew(&clock::own_meta("renew".to_owned()), self.id, &leases, self.config.lease_ms)
        {
            Ok(renewed) => {
                let is_fenced = |live: &&Arc<Live>| {
                    renewed.fenced.contains(&live.lease)
                        && self.live(live.id()).is_some_and(|l| Arc::ptr_eq(&l, live))
                };
                live.iter().filter(is_fenced).cloned().collect()
            }
            Err(error) => {
                tracing::error!(%error, "cannot renew leases");
                Vec::new()
            }
        }
    }

    /// Ends queued attempts that an earlier worker left and for which nobody has come back.
    fn give_up_orphans(&self) {
        for id in &self.orphans {
            // Under the lock to the end, so that whoever comes back for it joins before or after, not between.
            let state = locked(&self.state);
            let queued = self.graph().attempt(*id).is_ok_and(|found| found.status == AttemptStatus::Queued);
            if queued && !state.knows(*id) {
                self.give_up(*id, "nobody has waited for it since its worker was lost");
            }
        }
    }
}
