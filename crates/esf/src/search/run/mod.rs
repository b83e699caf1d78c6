//! `esf search run`: selects rollouts, carries them out side by side, and goes on until the search stops. The
//! search itself is in the graph; what is here can be killed at any time and started again. Invariants: a
//! rollout that is held by a driver that lives is renewed; one that a dead driver held is carried to its
//! end by the next; after Ctrl-C nothing is held.

mod inbox;
mod progress;
mod proposer;
mod rollout;
mod sandbox;
mod tether;

pub(crate) use tether::tethered;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use esf_control::proposer_talk::Limits;
use esf_core::ops::search::{BudgetSearch, CreateSearch, Renewal, Select, Selection};
use esf_core::policy::Policy;
use esf_core::record::Evaluation;
use esf_core::search::{Config, Expansion, Search, StopReason, Ticket};
use esf_core::{Class, Problem, RolloutId};
use esf_graph::Ref;
use esf_store::Store;
use serde_json::{Value, json};

use self::progress::Tell;
use self::proposer::{Program, Proposer};
use self::rollout::{Carrier, Crew, Ended};
use super::config::{self, SearchFile};
use super::lines;
use crate::args;
use crate::commands::{environment, find, show};
use crate::context::Context;
use crate::evaluation::{self, Prepared};
use crate::interrupt;
use crate::lock::DriverLock;
use crate::output::{Reply, Table, not_supported};

/// How often what may change from outside is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How a run ended.
enum Over {
    /// The search takes no more rollouts.
    Stopped,
    /// Ctrl-C.
    Interrupted,
}

pub(super) fn run(context: &Context, arguments: &args::SearchRun) -> Result<Reply, Problem> {
    interrupt::watch()?;
    let mut file = SearchFile::read(&arguments.config)?;
    let evaluator = file.pin_evaluator()?;
    let (Some(evaluator), Some(run)) = (evaluator, &file.run) else {
        return Err(Problem::new(Class::Usage, "bad_config", "the file has no [run] table")
            .expected("[run] with `proposer` and `evaluator`; see docs/search.md")
            .found(file.path.display().to_string()));
    };
    one_run_each(&evaluator, run)?;
    let final_evaluator = run.final_evaluator.as_deref().map(Prepared::read).transpose();
    let key = format!("final in [run] of {}", file.path.display());
    let final_evaluator = final_evaluator.map_err(|problem| config::named(&key, problem))?;
    proposer::find(&run.proposer, &run.directory)?;
    usable(&file.search)?;
    let store = context.open()?;
    let search = search(context, &store, &file.search, arguments)?;
    // What is refused is refused before anything is selected.
    let group = store.graph().group(search.group_id).map_err(|error| error.problem())?;
    environment::environment(&group.default_environment, &arguments.options, Vec::new())?;
    tell_stopped(&search);
    let id = search.search_id;
    let _lock = DriverLock::take(store.directory(), &format!("run-{id}"), || {
        Problem::new(Class::Conflict, "search_is_run", format!("another `esf search run` is at {id}"))
            .remedy("wait for it, or end it with Ctrl-C first; `esf search watch` shows how far it is")
            .retryable()
    })?;
    let resume = resume_line(context, &search, &file);
    let context = context.acting("search-run");
    let driver = Driver { context, store, run, policy: group.policy, arguments, evaluator, search };
    eprintln!("esf: {}", driver.search.search_id);
    let over = driver.drive().inspect_err(|_| eprintln!("esf: go on with: {resume}"))?;
    let last = driver.current()?;
    if matches!(over, Over::Interrupted) {
        let message = format!("interrupted after {} rollouts; nothing is lost", last.accepted);
        return Err(Problem::new(Class::Failure, "cancelled", message)
            .remedy(format!("go on with: {resume}"))
            .context(json!({ "search_id": last.search_id, "accepted": last.accepted }))
            .retryable());
    }
    driver.report(&last, final_evaluator.as_ref())
}

/// A search takes one value from each evaluation.
fn one_run_each(evaluator: &Prepared, run: &config::Run) -> Result<(), Problem> {
    if evaluator.runs() == 1 {
        return Ok(());
    }
    let message = "an evaluator of a search runs once for each rollout";
    Err(Problem::new(Class::Usage, "bad_evaluator", message)
        .expected("repeat = 1; with leaf_value = \"mean\" a leaf that is visited again is evaluated again")
        .found(format!("repeat = {} in {}", evaluator.runs(), run.evaluator.display())))
}

/// What a run cannot keep to.
fn usable(config: &Config) -> Result<(), Problem> {
    if config.budget.cost.is_some() {
        return Err(not_supported(
            "budget.cost in `esf search run`: its rollouts have no cost",
            "use budget.rollouts, budget.attempts or budget.wall_ms, or complete by hand with --cost",
        ));
    }
    Ok(())
}

/// The search that is named, or a new one at the node that is named.
fn search(
    context: &Context,
    store: &Store,
    config: &Config,
    arguments: &args::SearchRun,
) -> Result<Search, Problem> {
    let graph = store.graph();
    let mut config = config.clone();
    if let Some(rollouts) = arguments.budget_rollouts {
        config.budget.rollouts = Some(rollouts);
    }
    let Ref::Search(id) = super::reference(store, &arguments.at)? else {
        let root = find::node(store, &arguments.at)?.node_id;
        let created = graph.create_search(&context.meta("create")?, CreateSearch { root, config });
        return created.map_err(|error| error.problem());
    };
    let search = graph.search(id).map_err(|error| error.problem())?;
    let same = Config { budget: search.config.budget, ..config };
    if same != search.config {
        let evaluator =
            if same.evaluator == search.config.evaluator { "" } else { ", its evaluator among them" };
        let (field, made, said) = difference(&search.config, &same);
        let message =
            format!("{id} was made with other settings{evaluator}: {field} was {made}, and is {said} here");
        return Err(Problem::new(Class::Conflict, "config_differs", message)
            .expected(format!("{field} = {made}"))
            .found(format!("{field} = {said}"))
            .remedy("use the file that it was made with, or begin another search at a node"));
    }
    let Some(rollouts) = arguments.budget_rollouts else { return Ok(search) };
    let budget = esf_core::search::config::Budget { rollouts: Some(rollouts), ..search.config.budget };
    let meta = context.meta(&format!("budget/{}", context.trace_id()))?;
    graph.budget_search(&meta, BudgetSearch { search: id, budget }).map_err(|error| error.problem())
}

/// The first setting that differs, and both its values.
fn difference(made: &Config, said: &Config) -> (String, Value, Value) {
    let (made, said) = (json!(made), json!(said));
    let differs = made.as_object().into_iter().flatten().find(|(name, value)| said[name.as_str()] != **value);
    let name = differs.map_or("config", |(name, _)| name.as_str());
    (name.to_owned(), made[name].clone(), said[name].clone())
}

/// Why a search that is stopped does nothing more, and what lets it go on.
fn tell_stopped(search: &Search) {
    let Some(reason) = search.stopped else { return };
    eprintln!(
        "esf: {} is stopped ({}) after {} rollouts; --budget-rollouts N with more than that lets it go on",
        search.search_id,
        reason.as_str(),
        search.accepted
    );
}

fn resume_line(context: &Context, search: &Search, file: &SearchFile) -> String {
    let store = context.store_option().map_or(String::new(), |store| format!(" --store {}", store.display()));
    format!("esf{store} search run {} --config {}", search.search_id, file.path.display())
}

struct Driver<'a> {
    context: Context,
    store: Store,
    run: &'a config::Run,
    policy: Policy,
    arguments: &'a args::SearchRun,
    evaluator: Prepared,
    search: Search,
}

/// What workers say.
struct Done {
    rollout: RolloutId,
    ended: Result<Ended, Problem>,
}

impl Driver<'_> {
    fn current(&self) -> Result<Search, Problem> {
        self.store.graph().search(self.search.search_id).map_err(|error| error.problem())
    }

    /// Selects and carries out until the search stops, something breaks, or Ctrl-C.
    fn drive(&self) -> Result<Over, Problem> {
        let tell = Arc::new(Tell::new(self.search.accepted));
        let proposer = self.proposer(&tell)?;
        let ending = AtomicBool::new(false);
        let crew = Crew {
            context: &self.context,
            store: &self.store,
            search: self.search.search_id,
            config: &self.search.config,
            run: self.run,
            apply_timeout_ms: self.run.apply_timeout_ms.unwrap_or(self.policy.budgets().agent.0),
            retries: self.policy.retries,
            evaluator: &self.evaluator,
            options: &self.arguments.options,
            proposer: &proposer,
            tell: &tell,
            root: self.search.root,
            struck: Mutex::new(HashMap::new()),
            ending: &ending,
        };
        let (tickets, to_carry) = channel::<Ticket>();
        let (done, finished) = channel::<Done>();
        let to_carry = Mutex::new(to_carry);
        let held = Mutex::new(HashSet::new());
        let parallel = self.arguments.parallel.unwrap_or(self.run.parallel) as usize;
        std::thread::scope(|scope| {
            for _ in 0..parallel {
                let done = done.clone();
                scope.spawn(|| work(&crew, &to_carry, done));
            }
            drop(done);
            let (stop, stopped) = channel::<()>();
            scope.spawn(|| self.heartbeat(&held, &tell, stopped));
            let foreman = Foreman {
                driver: self,
                tell: &tell,
                proposer: &proposer,
                held: &held,
                ending: &ending,
                parallel,
                finished: &finished,
                selections: 0,
                best: lines::best_reward(&self.store, &self.search)?,
            };
            let over = foreman.run(tickets);
            drop(stop);
            over
        })
    }

    fn proposer(&self, tell: &Arc<Tell>) -> Result<Proposer, Problem> {
        let environment = vec![
            ("ESF_STORE".to_owned(), self.store.directory().to_owned()),
            ("ESF_SEARCH".to_owned(), self.search.search_id.to_string().into()),
            ("ESF".to_owned(), self.context.program()?),
        ];
        let program = Program {
            esf: self.context.program()?,
            argv: self.run.proposer.clone(),
            directory: self.run.directory.clone(),
            environment,
        };
        let limits = Limits {
            timeout_ms: self.run.proposer_timeout_ms,
            tries: self.run.proposer_tries,
            most_actions: self.run.max_actions,
            values: self.search.config.values,
        };
        Ok(Proposer::new(program, limits, Arc::clone(tell)))
    }

    /// Renews what is held until `stopped` hangs up.
    fn heartbeat(&self, held: &Mutex<HashSet<RolloutId>>, tell: &Tell, stopped: Receiver<()>) {
        let every = Duration::from_millis((self.run.lease_ms / 3).max(1));
        while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            let rollouts: Vec<RolloutId> =
                held.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
            match self.renew(&rollouts) {
                Ok(renewal) => {
                    for lost in renewal.lost {
                        tracing::info!(rollout = %lost, "no longer held");
                    }
                }
                Err(problem) => tell.line(&format!("the rollouts' leases could not be renewed: {problem}")),
            }
        }
    }

    fn renew(&self, rollouts: &[RolloutId]) -> Result<Renewal, Problem> {
        if rollouts.is_empty() {
            return Ok(Renewal::default());
        }
        let meta = self.context.meta("renew")?;
        let renewal = self.store.graph().extend_rollouts(&meta, rollouts, self.run.lease_ms);
        renewal.map_err(|error| error.problem())
    }

    /// What was found: the best node and how it is reached, tested by the final evaluator.
    fn report(&self, last: &Search, final_evaluator: Option<&Prepared>) -> Result<Reply, Problem> {
        let best = lines::best_position(&self.store, last)?;
        let mut judged: Option<Evaluation> = None;
        if let (Some(evaluator), Some(best)) = (final_evaluator, &best)
            && let Some(node) = best.position.node_id
        {
            let node = self.store.graph().node(node).map_err(|error| error.problem())?;
            let name = evaluator.name();
            eprintln!("esf: the final evaluator {name} judges {}", node.node_id);
            let context = self.context.keyed(format!("{}/final/{}", last.search_id, node.node_id));
            judged = Some(evaluation::evaluate(&context, &self.store, &node, evaluator, "", &|_| {})?);
        }
        let mut table =
            Table::new(&["SEARCH", "STOPPED", "ROLLOUTS", "REWARD", "BEST NODE", "FINAL", "ACTIONS"]);
        let named = best.as_ref().map(|best| best.names.join(" → "));
        table.row([
            show::short(&last.search_id),
            last.stopped.map_or("-".to_owned(), |reason| reason.as_str().to_owned()),
            last.accepted.to_string(),
            best.as_ref().map_or("-".to_owned(), |best| lines::number(best.reward)),
            show::optional(&best.as_ref().and_then(|best| best.position.node_id)),
            show::optional(&judged.as_ref().map(|judged| judged.verdict.to_string())),
            named.unwrap_or_default(),
        ]);
        let value = json!({
            "search": last, "best": best.as_ref().map(lines::BestPosition::json), "final": judged,
        });
        if let Some(why) = self.nothing(last)? {
            let message = format!("nothing but the root ever had a value: {why}");
            return Err(Problem::new(Class::Failure, "nothing_found", message)
                .expected("an action that can be taken, and a reward for what comes of it")
                .found(format!("{} rollouts accepted, {} void", last.accepted, last.void))
                .remedy(format!(
                    "`esf search export {} --format json` has the reason of each edge",
                    last.search_id
                ))
                .context(value));
        }
        let node = best.and_then(|best| best.position.node_id);
        Ok(Reply { value, table, ids: node.iter().map(ToString::to_string).collect() })
    }
}

impl Driver<'_> {
    /// Why a search that is over has nothing but its root, if that is so: its edges' commonest reason.
    fn nothing(&self, last: &Search) -> Result<Option<String>, Problem> {
        let graph = self.store.graph();
        let root = graph.position(last.root).map_err(|error| error.problem())?;
        let wanted = matches!(last.stopped, Some(StopReason::Reward | StopReason::User));
        if last.positions > 1 || root.stats.terminal || wanted || last.config.max_depth == Some(0) {
            return Ok(None);
        }
        let edges = graph.edges_of(last.root).map_err(|error| error.problem())?;
        if edges.is_empty() {
            let asked = root.stats.expansion != Expansion::Unasked;
            return Ok(asked.then(|| "the proposer offered no action".to_owned()));
        }
        let mut reasons = HashMap::<&str, usize>::new();
        for reason in edges.iter().filter_map(|edge| edge.closed_because.as_deref()) {
            *reasons.entry(reason).or_default() += 1;
        }
        let commonest = reasons.into_iter().max_by_key(|(reason, times)| (*times, *reason));
        Ok(commonest
            .map(|(reason, times)| format!("{times} of {} actions failed with: {reason}", edges.len())))
    }
}

/// Takes tickets until there are no more.
fn work(crew: &Crew<'_>, tickets: &Mutex<Receiver<Ticket>>, done: Sender<Done>) {
    let mut client = None;
    loop {
        let next = tickets.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(ticket) = next else { return };
        let rollout = ticket.rollout.rollout_id;
        let ended = Carrier::new(crew, &mut client, ticket).carry();
        if done.send(Done { rollout, ended }).is_err() {
            return;
        }
    }
}

/// Who hands tickets out.
struct Foreman<'a> {
    driver: &'a Driver<'a>,
    tell: &'a Tell,
    proposer: &'a Proposer,
    held: &'a Mutex<HashSet<RolloutId>>,
    ending: &'a AtomicBool,
    parallel: usize,
    finished: &'a Receiver<Done>,
    selections: u64,
    best: Option<f64>,
}

impl Foreman<'_> {
    fn run(mut self, tickets: Sender<Ticket>) -> Result<Over, Problem> {
        let outcome = self.hand_out(&tickets);
        if outcome.is_err() || matches!(outcome, Ok(Over::Interrupted)) {
            self.ending.store(true, Ordering::Release);
            self.proposer.close();
        }
        drop(tickets);
        // What is carried is carried to its end: by Ctrl-C that is at once.
        let mut broken = None;
        while self.live() > 0 {
            let Ok(done) = self.finished.recv() else { break };
            broken = broken.or(self.settle(done).err());
        }
        let last = self.driver.current()?;
        self.tell.end(&last, self.best);
        match (outcome, broken) {
            (Ok(Over::Stopped), Some(problem)) => Err(problem),
            (outcome, _) => outcome,
        }
    }

    fn live(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn hand_out(&mut self, tickets: &Sender<Ticket>) -> Result<Over, Problem> {
        let taken_over = self.taken_over()?;
        if !taken_over.is_empty() {
            self.tell.line(&format!("{} rollouts of an earlier run are gone on with", taken_over.len()));
        }
        self.give(tickets, taken_over);
        let mut told_of_others = false;
        loop {
            if interrupt::seen() {
                self.tell.line("ending: what runs is given back");
                return Ok(Over::Interrupted);
            }
            let free = self.parallel.saturating_sub(self.live());
            let mut waits = free == 0;
            if free > 0 {
                let selection = self.select(free)?;
                let some = !selection.tickets.is_empty();
                self.give(tickets, selection.tickets);
                if selection.stopped.is_some() {
                    return Ok(Over::Stopped);
                }
                waits = !some;
                if !some && self.live() == 0 && !told_of_others {
                    told_of_others = true;
                    self.tell.line("all that is open is held by others; waiting for them");
                }
            }
            if waits {
                match self.finished.recv_timeout(LOOK) {
                    Ok(done) => self.settle(done)?,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(Problem::new(
                            Class::Failure,
                            "workers_gone",
                            "every worker thread has ended",
                        ));
                    }
                }
            }
            while let Ok(done) = self.finished.try_recv() {
                self.settle(done)?;
            }
            let current = self.driver.current()?;
            self.tell.at(&current, self.best, self.live());
        }
    }

    /// What an earlier driver of this search held when it died, held on. Of an earlier boot nothing is left to go on
    /// with: the next selection finds such rollouts lapsed.
    fn taken_over(&self) -> Result<Vec<Ticket>, Problem> {
        let graph = self.driver.store.graph();
        let held = graph.tickets_in_flight(self.driver.search.search_id).map_err(|error| error.problem())?;
        let holder = self.driver.context.actor();
        let ours: Vec<Ticket> =
            held.into_iter().filter(|ticket| ticket.rollout.created_by == holder).collect();
        let ids: Vec<RolloutId> = ours.iter().map(|ticket| ticket.rollout.rollout_id).collect();
        let held: HashSet<RolloutId> = self.driver.renew(&ids)?.held.into_iter().collect();
        Ok(ours.into_iter().filter(|ticket| held.contains(&ticket.rollout.rollout_id)).collect())
    }

    fn select(&mut self, free: usize) -> Result<Selection, Problem> {
        self.selections += 1;
        let driver = self.driver;
        let key = format!("select/{}/{}", driver.context.trace_id(), self.selections);
        let command = Select {
            search: driver.search.search_id,
            count: u32::try_from(free).unwrap_or(Select::MAX).min(Select::MAX),
            lease_ms: driver.run.lease_ms,
            at: None,
            edge: None,
        };
        driver.store.graph().select(&driver.context.meta(&key)?, command).map_err(|error| error.problem())
    }

    fn give(&self, tickets: &Sender<Ticket>, given: Vec<Ticket>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for ticket in given {
            held.insert(ticket.rollout.rollout_id);
            // Workers live until there are no more tickets.
            let _ = tickets.send(ticket);
        }
    }

    fn settle(&mut self, done: Done) -> Result<(), Problem> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&done.rollout);
        match done.ended? {
            Ended::Accepted(Some(worth)) if self.best.is_none_or(|best| worth > best) => {
                self.best = Some(worth);
                self.tell.line(&format!("best value so far: {}", lines::number(worth)));
            }
            ended => tracing::debug!(rollout = %done.rollout, ?ended, "ended"),
        }
        Ok(())
    }
}
