//! Many evaluations at once. Invariant: each is asked for under a part of the key of its own, so a batch
//! that was cut short is asked for again whole, and what was done is not done twice; one that fails stops
//! no other.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use esf_core::record::{Evaluation, Node};
use esf_core::{Class, Problem};
use esf_store::Store;

use super::{Prepared, Stage, evaluate};
use crate::context::Context;

/// One evaluation of a batch.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    /// The sealed node.
    pub(crate) node: &'a Node,
    /// Its part of the request's key; no two tasks have the same.
    pub(crate) part: String,
}

/// What is told while a batch runs.
pub(crate) enum Progress<'a> {
    /// An evaluation has come this far.
    Stage(Stage),
    /// One of them is over; how many are.
    Done(&'a Task<'a>, &'a Result<Evaluation, Problem>, usize),
}

/// Evaluates all `tasks`, at most `parallel` at once; the answers are in their order. After a signal to
/// this program no further one is begun.
pub(crate) fn evaluate_all(
    context: &Context,
    store: &Store,
    prepared: &Prepared,
    tasks: &[Task<'_>],
    parallel: usize,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Vec<Result<Evaluation, Problem>> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let answers: Vec<Mutex<Option<Result<Evaluation, Problem>>>> =
        tasks.iter().map(|_| Mutex::default()).collect();
    let work = || {
        while !crate::interrupt::seen() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = tasks.get(number) else { return };
            let tell = |stage| progress(Progress::Stage(stage));
            let answer = evaluate(context, store, task.node, prepared, &task.part, &tell);
            progress(Progress::Done(task, &answer, done.fetch_add(1, Ordering::Relaxed) + 1));
            *answers[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        }
    };
    match parallel.min(tasks.len()) {
        0 | 1 => work(),
        threads => std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work)))),
    }
    let never_begun = || {
        let problem =
            Problem::new(Class::Failure, "cancelled", "it was not begun: the batch was interrupted");
        Err(problem.remedy("ask again under the same idempotency key: what is missing is run"))
    };
    let answers =
        answers.into_iter().map(|answer| answer.into_inner().unwrap_or_else(PoisonError::into_inner));
    answers.map(|answer| answer.unwrap_or_else(never_begun)).collect()
}
