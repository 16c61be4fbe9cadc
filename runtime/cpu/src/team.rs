//! The threads that execute a step.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The thread that asks for a step, and others that help it. It begins at once, while the others are still being woken.
#[derive(Debug)]
pub(super) struct Team {
    helpers: Option<rayon::ThreadPool>,
}

impl Team {
    /// A team of so many threads, at least one.
    ///
    /// # Panics
    /// If the system refuses to start threads.
    pub(super) fn new(threads: usize) -> Self {
        let helpers = (threads > 1).then(|| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads - 1)
                .thread_name(|index| format!("tilewright-{}", index + 1))
                .build()
                .expect("the system starts threads")
        });
        Self { helpers }
    }

    /// Every thread does `work`, which is told the thread's number: that of the caller is 0. Returns when all are done.
    pub(super) fn run(&self, work: impl Fn(usize) + Sync) {
        let Some(helpers) = &self.helpers else { return work(0) };
        let work = &work;
        helpers.in_place_scope(|scope| {
            scope.spawn_broadcast(move |_, helper| work(helper.index() + 1));
            work(0);
        });
    }
}

/// Work that has to be done by all threads before anything else is begun.
#[derive(Debug)]
pub(super) struct Pending(AtomicUsize);

impl Pending {
    pub(super) const fn new(pieces: usize) -> Self {
        Self(AtomicUsize::new(pieces))
    }

    /// Does a piece. It counts as done if it panics, too: others do not wait for what never comes.
    pub(super) fn piece<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Done<'a>(&'a AtomicUsize);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Release);
            }
        }
        let _done = Done(&self.0);
        work()
    }

    /// Waits until all pieces are done, and sees what they wrote. A piece takes microseconds, about as long as to wake a thread.
    pub(super) fn wait(&self) {
        let mut looks = 0u32;
        while self.0.load(Ordering::Acquire) > 0 {
            looks += 1;
            if looks.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_thread_works_once_the_callers_too() {
        for threads in 1..5 {
            let seen = Mutex::new(Vec::new());
            let caller = std::thread::current().id();
            Team::new(threads).run(|thread| {
                assert_eq!(thread == 0, std::thread::current().id() == caller);
                seen.lock().unwrap().push(thread);
            });
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            assert_eq!(seen, (0..threads).collect::<Vec<_>>());
        }
    }

    #[test]
    fn all_see_what_was_written_before() {
        let team = Team::new(4);
        for _ in 0..100 {
            let (next, written, pending) = (AtomicUsize::new(0), AtomicUsize::new(0), Pending::new(10));
            team.run(|_| {
                while next.fetch_add(1, Ordering::Relaxed) < 10 {
                    pending.piece(|| written.fetch_add(1, Ordering::Relaxed));
                }
                pending.wait();
                assert_eq!(written.load(Ordering::Relaxed), 10);
            });
        }
    }

    #[test]
    fn a_piece_that_panics_ends_the_step_with_its_panic() {
        let (team, pending) = (Team::new(2), Pending::new(1));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            team.run(|thread| {
                if thread == 1 {
                    pending.piece(|| panic!("out of order"));
                }
                pending.wait();
            });
        }));
        assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"out of order"));
    }
}
