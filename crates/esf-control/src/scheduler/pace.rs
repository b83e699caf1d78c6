//! How fast a worker starts attempts: what it needs to remember to say how many it may start now, and how
//! many lived a while ago. Time is an argument: any clock that does not go back.

use std::collections::VecDeque;
use std::time::Duration;

use super::facts::GROWTH_WINDOW;

/// A second: the window of the bound on creates.
const SECOND: Duration = Duration::from_secs(1);

/// The recent past of one worker.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    starts: VecDeque<Duration>,
    /// How many lived from each moment on; the first is the last one before the window.
    lived: VecDeque<(Duration, u64)>,
}

impl Pace {
    /// Remembers that an attempt was started.
    pub fn started(&mut self, now: Duration) {
        self.forget(now);
        self.starts.push_back(now);
    }

    /// Remembers how many live from now on.
    pub fn lives(&mut self, now: Duration, live: u64) {
        self.forget(now);
        match self.lived.back_mut() {
            Some((at, last)) if *at == now => *last = live,
            Some((_, last)) if *last == live => {}
            _ => self.lived.push_back((now, live)),
        }
    }

    /// How many may be started now when `per_second` may be in each second.
    pub fn creates(&mut self, now: Duration, per_second: u64) -> u64 {
        self.forget(now);
        per_second.saturating_sub(self.starts.len() as u64)
    }

    /// How many were started within the last second.
    pub fn rate(&mut self, now: Duration) -> u64 {
        self.forget(now);
        self.starts.len() as u64
    }

    /// How many lived `GROWTH_WINDOW` ago; none before the first was remembered.
    pub fn lived(&mut self, now: Duration) -> u64 {
        self.forget(now);
        let before = |at: Duration| now.checked_sub(GROWTH_WINDOW).is_some_and(|then| at <= then);
        self.lived.front().filter(|(at, _)| before(*at)).map_or(0, |(_, live)| *live)
    }

    fn forget(&mut self, now: Duration) {
        while self.starts.front().is_some_and(|at| *at + SECOND <= now) {
            self.starts.pop_front();
        }
        while self.lived.get(1).is_some_and(|(at, _)| *at + GROWTH_WINDOW <= now) {
            self.lived.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn creates_come_back_after_a_second() {
        let mut pace = Pace::default();
        for at in [0, 100, 200] {
            assert!(pace.creates(ms(at), 3) > 0);
            pace.started(ms(at));
        }
        assert_eq!((pace.creates(ms(999), 3), pace.rate(ms(999))), (0, 3));
        assert_eq!(pace.creates(ms(1000), 3), 1);
        assert_eq!(pace.creates(ms(1200), 3), 3);
    }

    #[test]
    fn what_lived_is_known_as_long_as_it_matters() {
        let mut pace = Pace::default();
        pace.lives(ms(0), 0);
        pace.lives(ms(1000), 8);
        pace.lives(ms(2000), 12);
        assert_eq!(pace.lived(ms(5999)), 0);
        assert_eq!(pace.lived(ms(6000)), 8);
        assert_eq!(pace.lived(ms(6999)), 8);
        assert_eq!(pace.lived(ms(9_000_000)), 12);
        assert!(pace.lived.len() <= 1);
    }
}
