//! Nodes as commits, and as a series of patches: the line of first parents that leads to a node, one step for
//! each or one for all. Invariant: a branch moves only from a commit that the exported node follows (none, the
//! imported commit, or one exported from its line), after everything it names is there; the same nodes on the
//! same parent give the same commits. A crash before the branch moves leaves objects that nothing names.

use std::collections::HashSet;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use esf_core::NodeId;
use esf_core::diff::{Change, diff};
use esf_core::manifest::{EntryKind, RootPin, lookup, walk};
use esf_core::ops::Meta;
use esf_core::record::Node;
use esf_exchange::git::{self, Author, Bench, Commits, Git, Ignored, Person, Repository, Tip};
use esf_exchange::patch::{self, Writer};
use esf_exchange::{LeftOut, identity};
use esf_layerstack::Scratch;
use serde_json::json;

use crate::create::root_of;
use crate::export::{Export, Exported, Format, Written};
use crate::git::{Origin, bench, origin};
use crate::target::{Target, write_new};
use crate::{Error, RootFiles, Store, Subject, statement};

/// How many ignored paths are named.
const NAMED: usize = 100;

/// The nodes from which an exported one descends by first parents.
pub(crate) struct Line {
    /// Oldest first; the exported node is last.
    nodes: Vec<Node>,
    /// The commit that the oldest was imported from.
    origin: Option<Origin>,
}

/// What is ignored in a tree, and not tracked.
struct Rules<'a> {
    store: &'a Store,
    first: RootPin,
    work: Scratch,
    format: git::ObjectFormat,
    rounds: u32,
    tracked: OnceLock<Option<HashSet<Vec<u8>>>>,
    include: bool,
    /// Everything that was left out, in the order it was met.
    left: Vec<Vec<u8>>,
}

impl Store {
    /// The line of first parents to `node`, through groups that were made from a node.
    pub(crate) fn line(&self, node: &Node) -> Result<Line, Error> {
        let mut nodes = vec![node.clone()];
        loop {
            let last = nodes.last().expect("it holds the exported node");
            let source = last.provenance.get("node_id").filter(|_| last.provenance["kind"] == "node");
            let before = last.parents.first().copied().or_else(|| source?.as_str()?.parse().ok());
            let Some(before) = before else { break };
            nodes.push(self.graph().node(before)?);
        }
        nodes.reverse();
        let origin = origin(&nodes[0]);
        Ok(Line { nodes, origin })
    }

    fn rules(&self, line: &Line, include: bool) -> Result<Rules<'_>, Error> {
        let format = line.origin.as_ref().map_or(git::ObjectFormat::Sha1, |origin| origin.format);
        Ok(Rules {
            store: self,
            first: root_of(&line.nodes[0])?,
            work: self.stack().scratch()?,
            format,
            rounds: 0,
            tracked: OnceLock::new(),
            include,
            left: Vec::new(),
        })
    }

    /// Writes the patch from one root to another without ignored paths.
    pub(crate) fn patch_without_ignored(
        &self,
        node: &Node,
        (from, to): (&RootPin, &RootPin),
        include: bool,
        out: &mut dyn Write,
    ) -> Result<(patch::Summary, Vec<Vec<u8>>), Error> {
        let mut rules = self.rules(&self.line(node)?, include)?;
        let changes = diff(self.stack().objects(), from, to)?;
        let ignored = rules.of_changes(to, &changes)?;
        let (before, after) = (RootFiles::new(self.stack(), from), RootFiles::new(self.stack(), to));
        let writer = Writer::new(out, &before, &after);
        let summary = patch::changes(self.stack().objects(), &changes, &ignored, to, writer)?;
        Ok((summary, rules.left))
    }

    /// Exports `node` onto a branch.
    pub(crate) fn export_git(&self, meta: &Meta, request: &Export, node: &Node) -> Result<Exported, Error> {
        let line = self.line(node)?;
        let _held = self.stack().lock_shared()?;
        match Repository::open(Git::system(), &request.to) {
            Ok(repository) => self.onto_branch(meta, request, &line, &repository),
            // A new one, unless something else is there.
            Err(git::Error::NotARepository { .. }) => self.new_repository(meta, request, &line),
            Err(error) => Err(esf_exchange::Error::from(error).into()),
        }
    }

    fn new_repository(&self, meta: &Meta, request: &Export, line: &Line) -> Result<Exported, Error> {
        let target = Target::claim(&request.to)?;
        let format = line.origin.as_ref().map_or(git::ObjectFormat::Sha1, |origin| origin.format);
        let made = Bench::make(Git::system(), target.partial(), format)?;
        let repository = Repository::open(Git::system(), made.directory()).map_err(told)?;
        let name = request.branch.clone().unwrap_or_else(|| "main".to_owned());
        let tip = repository.tip(&name).map_err(told)?;
        let found = self.write_commits(request, line, &repository, &tip)?;
        repository.advance(&tip, &found.commit).map_err(told)?;
        let head = made.directory().join("HEAD");
        fs::write(&head, format!("ref: {}\n", tip.reference)).map_err(io_error("write", &head))?;
        let (exported, text) =
            self.told_commit(meta, request, line, &found, (target.path(), target.statement()))?;
        target.publish(&text)?;
        Ok(exported)
    }

    fn onto_branch(
        &self,
        meta: &Meta,
        request: &Export,
        line: &Line,
        repository: &Repository,
    ) -> Result<Exported, Error> {
        let node = line.node();
        let name = request.branch.clone().unwrap_or_else(|| format!("esf/{}", node.node_id));
        let tip = repository.tip(&name).map_err(told)?;
        repository.not_checked_out(&tip).map_err(told)?;
        let found = self.write_commits(request, line, repository, &tip)?;
        let directory = repository.common_directory().join("esf");
        let place = directory.join(format!("{}.provenance.json", found.commit));
        let (exported, text) = self.told_commit(meta, request, line, &found, (&request.to, &place))?;
        fs::create_dir_all(&directory).map_err(io_error("create", &directory))?;
        // The same commit has been told of before: its first statement stays.
        write_new(&place, &text)?;
        if tip.commit.as_ref() != Some(&found.commit) {
            repository.advance(&tip, &found.commit).map_err(told)?;
        }
        Ok(exported)
    }

    /// Writes what is missing between the branch and the node; moves nothing.
    fn write_commits(
        &self,
        request: &Export,
        line: &Line,
        repository: &Repository,
        tip: &Tip,
    ) -> Result<Found, Error> {
        let mut rules = self.rules(line, request.include_ignored)?;
        let bench = bench(&rules.work, repository.format())?.write_to(repository.objects());
        let start = self.start(line, &bench, tip)?;
        let steps = line.steps(start.index(), request.series);
        let mut left_out = Vec::new();
        let mut parent = start.commit();
        let mut commits = Vec::new();
        if !steps.is_empty() {
            let mut writing = Commits::begin(&bench)?;
            let mut before = match start {
                Start::Imported(_) => Some(root_of(&line.nodes[0])?),
                Start::Nothing | Start::Exported(..) => None,
            };
            for node in &steps {
                let node = self.sealed_node(node.node_id)?;
                self.write_step(&mut writing, &mut rules, line, &node, (before, parent.take()))?;
                before = Some(root_of(&node)?);
            }
            let (names, lacking) = writing.finish()?;
            left_out = lacking;
            commits = steps.iter().map(|node| node.node_id).zip(names).collect();
        }
        let commit = commits.last().map(|(_, name)| name.clone()).or_else(|| start.commit());
        let commit = commit.expect("without a start there is a step");
        let read = bench.commit(&commit).map_err(told)?;
        let tree = read.map(|commit| commit.tree).unwrap_or_default();
        let branch = tip.reference.trim_start_matches("refs/heads/").to_owned();
        let ignored = name_ignored(&rules.left, &mut left_out);
        Ok(Found { commit, tree, branch, commits, parent: start.commit(), left_out, ignored })
    }

    fn write_step(
        &self,
        writing: &mut Commits,
        rules: &mut Rules<'_>,
        line: &Line,
        node: &Node,
        (before, parent): (Option<RootPin>, Option<String>),
    ) -> Result<(), Error> {
        let (author, pin) = (self.author(node)?, root_of(node)?);
        let files = RootFiles::new(self.stack(), &pin);
        let submodules = line.origin.as_ref().map_or(&[][..], |origin| &origin.submodules);
        let objects = self.stack().objects();
        let changes = before.map(|before| diff(objects, &before, &pin)).transpose()?;
        // Where the rules changed, what they say of all other paths may have changed too.
        let changes = changes.filter(|changes| !changes.iter().any(|change| is_rule(&change.path)));
        match changes {
            Some(changes) => {
                let ignored = rules.of_changes(&pin, &changes)?;
                writing.changed(&author, parent.as_deref(), &changes, &files, submodules, &ignored)?;
            }
            None => {
                let ignored = rules.of_all(&pin)?;
                writing.whole(&author, parent.as_deref(), (objects, &pin, &files), submodules, &ignored)?;
            }
        }
        Ok(())
    }

    /// Where the branch stands in the line, or that it stands elsewhere.
    fn start(&self, line: &Line, bench: &Bench, tip: &Tip) -> Result<Start, Error> {
        let imported = match &line.origin {
            Some(origin) if origin.format == bench.format() => {
                bench.commit(&origin.commit).map_err(told)?.map(|commit| commit.id)
            }
            _ => None,
        };
        let Some(at) = &tip.commit else {
            return Ok(imported.map_or(Start::Nothing, Start::Imported));
        };
        if imported.as_ref() == Some(at) {
            return Ok(Start::Imported(at.clone()));
        }
        let message = bench.commit(at).map_err(told)?.map(|commit| commit.message).unwrap_or_default();
        let trailer = exported_node(&message);
        let index = trailer.and_then(|id| line.nodes.iter().position(|node| node.node_id == id));
        if let Some(index) = index {
            return Ok(Start::Exported(at.clone(), index));
        }
        let followed = "a branch that does not exist yet, or is at a commit exported from the node's line";
        Err(told(git::Error::NotDescendant {
            branch: tip.reference.trim_start_matches("refs/heads/").to_owned(),
            expected: imported.map_or(followed.to_owned(), |id| format!("{followed}, or at {id}")),
            found: at.clone(),
        }))
    }

    /// The author and message of a node's commit; nothing of this moment goes in.
    fn author(&self, node: &Node) -> Result<Author, Error> {
        let message = node.message.as_deref().unwrap_or_default().replace('\0', "");
        let mut text = match message.trim() {
            "" => format!("Node {}", node.node_id),
            message => message.to_owned(),
        };
        text.push_str("\n\n");
        for (key, value) in self.trailers(node)? {
            text.push_str(&format!("{key}: {value}\n"));
        }
        let actor = &node.created_by;
        let person = Person::new(actor, &format!("{actor}@esf.invalid"));
        let seconds = node.sealed_at.unwrap_or(node.created_at).0.div_euclid(1000);
        Ok(Author { person, seconds, message: text })
    }

    fn trailers(&self, node: &Node) -> Result<Vec<(&'static str, String)>, Error> {
        let mut trailers =
            vec![("Esf-Node", node.node_id.to_string()), ("Esf-Root", root_of(node)?.root.to_string())];
        trailers.extend(node.attempt_id.map(|attempt| ("Esf-Attempt", attempt.to_string())));
        for evaluation in self.graph().evaluations(node.node_id)? {
            let plain = |text: &str| text.replace(char::is_control, " ");
            trailers.push((
                "Esf-Evaluation",
                format!(
                    "{} {}@{} {}",
                    evaluation.evaluation_id,
                    plain(&evaluation.evaluator),
                    plain(&evaluation.evaluator_version),
                    evaluation.verdict
                ),
            ));
        }
        Ok(trailers)
    }

    fn told_commit(
        &self,
        meta: &Meta,
        request: &Export,
        line: &Line,
        found: &Found,
        (path, provenance): (&Path, &Path),
    ) -> Result<(Exported, Vec<u8>), Error> {
        let node = line.node();
        let commits = found.commits.iter().map(|(node, id)| json!({ "node_id": node, "commit": id }));
        let summary = json!({
            "branch": found.branch,
            "commit": found.commit,
            "tree": found.tree,
            "parent": found.parent,
            "commits": commits.collect::<Vec<_>>(),
            "ignored": found.ignored,
        });
        let subject = Subject::Commit(found.commit.clone());
        let written = Written { subject, left_out: found.left_out.clone(), summary };
        let predicate = self.predicate(meta, request, node, None, &written)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = statement::write(&name, &written.subject, &predicate);
        let exported = Exported {
            format: Format::Git,
            path: std::path::absolute(path).map_err(io_error("resolve", path))?,
            provenance: provenance.to_owned(),
            node_id: node.node_id,
            root_id: root_of(node)?.root,
            from_node_id: None,
            digest: written.subject.digest(),
            left_out: written.left_out,
            summary: written.summary,
        };
        Ok((exported, text))
    }

    /// Writes one mail for each node after `from`, or after the oldest, into the directory `to`.
    pub(crate) fn write_series(&self, request: &Export, node: &Node, to: &Path) -> Result<Written, Error> {
        let line = self.line(node)?;
        let start = match request.from {
            None => 0,
            Some(from) => {
                line.nodes.iter().position(|node| node.node_id == from).ok_or_else(|| Error::BadRequest {
                    what: format!("{from} is not among the first parents of {}", node.node_id),
                    expected: "--from with a node of `esf log NODE`".to_owned(),
                })?
            }
        };
        let mut rules = self.rules(&line, request.include_ignored)?;
        fs::create_dir(to).map_err(io_error("create", to))?;
        let (mut left_out, mut empty, mut files) = (Vec::new(), Vec::<NodeId>::new(), 0_u64);
        let steps = &line.nodes[start..];
        for pair in steps.windows(2) {
            let (before, after) = (self.sealed_node(pair[0].node_id)?, self.sealed_node(pair[1].node_id)?);
            let place = to.join(format!("{:04}-{}.patch", files + 1, after.node_id));
            let summary = self.write_mail(&mut rules, &before, &after, &place)?;
            left_out.extend(summary.left_out);
            if summary.paths == 0 {
                // `git am` stops at a mail without a patch.
                fs::remove_file(&place).map_err(io_error("remove", &place))?;
                empty.push(after.node_id);
            } else {
                files += 1;
            }
        }
        let ignored = name_ignored(&rules.left, &mut left_out);
        let summary = json!({ "patches": files, "without_changes": empty, "ignored": ignored });
        Ok(Written { subject: Subject::Directory(identity::of_directory(to)?), left_out, summary })
    }

    fn write_mail(
        &self,
        rules: &mut Rules<'_>,
        before: &Node,
        after: &Node,
        place: &Path,
    ) -> Result<patch::Summary, Error> {
        let file = fs::File::create_new(place).map_err(io_error("create", place))?;
        let mut out = BufWriter::new(file);
        let Author { person, seconds, message } = self.author(after)?;
        let head = mail_head(person.as_str(), seconds, &message);
        out.write_all(head.as_bytes()).map_err(io_error("write", place))?;
        let (from, to) = (root_of(before)?, root_of(after)?);
        let changes = diff(self.stack().objects(), &from, &to)?;
        let ignored = rules.of_changes(&to, &changes)?;
        let (old, new) = (RootFiles::new(self.stack(), &from), RootFiles::new(self.stack(), &to));
        let writer = Writer::new(&mut out, &old, &new).in_mail();
        let summary = patch::changes(self.stack().objects(), &changes, &ignored, &to, writer)?;
        out.write_all(b"-- \nesf\n\n").and_then(|()| out.flush()).map_err(io_error("write", place))?;
        Ok(summary)
    }
}

/// What a branch stands at.
enum Start {
    Nothing,
    Imported(String),
    Exported(String, usize),
}

impl Start {
    fn commit(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Imported(commit) | Self::Exported(commit, _) => Some(commit.clone()),
        }
    }

    /// The node of the line that it stands at.
    const fn index(&self) -> Option<usize> {
        match self {
            Self::Nothing => None,
            Self::Imported(_) => Some(0),
            Self::Exported(_, index) => Some(*index),
        }
    }
}

/// What was written for a branch.
struct Found {
    commit: String,
    tree: String,
    branch: String,
    commits: Vec<(NodeId, String)>,
    parent: Option<String>,
    left_out: Vec<LeftOut>,
    ignored: u64,
}

impl Line {
    fn node(&self) -> &Node {
        self.nodes.last().expect("a line holds the exported node")
    }

    /// The nodes after `start`, or all of them; of several the last alone unless each is wanted.
    fn steps(&self, start: Option<usize>, series: bool) -> Vec<&Node> {
        let after = start.map_or(0, |index| index + 1);
        let all: Vec<_> = self.nodes[after..].iter().collect();
        if series { all } else { all.last().copied().into_iter().collect() }
    }
}

impl Rules<'_> {
    fn of_changes(&mut self, pin: &RootPin, changes: &[Change]) -> Result<Ignored, Error> {
        let held = |kind: &EntryKind| matches!(kind, EntryKind::File { .. } | EntryKind::Symlink { .. });
        let file = |change: &&Change| {
            [&change.before, &change.after].into_iter().flatten().any(|side| held(&side.kind))
        };
        self.of(pin, changes.iter().filter(file).map(|change| change.path.clone()).collect())
    }

    fn of_all(&mut self, pin: &RootPin) -> Result<Ignored, Error> {
        if self.include {
            return Ok(Ignored::new());
        }
        let mut paths = Vec::new();
        let mut entries = walk(self.store.stack().objects(), pin);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            if entry.path == b".git" {
                entries.skip_children();
            } else if !entry.kind.is_directory() {
                paths.push(entry.path);
            }
        }
        self.of(pin, paths)
    }

    fn of(&mut self, pin: &RootPin, paths: Vec<Vec<u8>>) -> Result<Ignored, Error> {
        if self.include || paths.is_empty() {
            return Ok(Ignored::new());
        }
        self.rounds += 1;
        let scratch = self.work.path().join(format!("rules-{}", self.rounds));
        fs::create_dir(&scratch).map_err(io_error("create", &scratch))?;
        let files = RootFiles::new(self.store.stack(), pin);
        let place = self.work.path().join(format!("bench-{}", self.rounds));
        let mut make = || Bench::make(Git::system(), &place, self.format);
        let objects = self.store.stack().objects();
        let mut found = git::ignored(objects, pin, &files, &paths, &scratch, &mut make)?;
        for path in paths {
            if found.contains(&path) {
                if self.is_tracked(&path)? {
                    found.remove(&path);
                } else {
                    self.left.push(path);
                }
            }
        }
        Ok(found)
    }

    /// Whether the first tree's index names `path`; without an index, whether that tree has it.
    fn is_tracked(&self, path: &[u8]) -> Result<bool, Error> {
        let named = match self.tracked.get() {
            Some(named) => named,
            None => {
                let named = self.read_index()?;
                self.tracked.get_or_init(|| named)
            }
        };
        match named {
            Some(named) => Ok(named.contains(path)),
            None => Ok(lookup(self.store.stack().objects(), &self.first, path)?.is_some()),
        }
    }

    fn read_index(&self) -> Result<Option<HashSet<Vec<u8>>>, Error> {
        let files = RootFiles::new(self.store.stack(), &self.first);
        let index = lookup(self.store.stack().objects(), &self.first, b".git/index")?;
        let Some(EntryKind::File { size, .. }) = index.map(|entry| entry.kind) else { return Ok(None) };
        let place = self.work.path().join("tracked");
        let bench = Bench::make(Git::system(), &place, self.format)?;
        Ok(git::tracked(&bench, &files, size)?)
    }
}

fn told(error: git::Error) -> Error {
    esf_exchange::Error::from(error).into()
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + 'a {
    move |source| Error::Io { action, path: PathBuf::from(path), source }
}

/// Whether a path is a file of ignore rules.
fn is_rule(path: &[u8]) -> bool {
    path == b".gitignore" || path.ends_with(b"/.gitignore")
}

/// Names the first of the ignored paths; answers how many there are.
pub(crate) fn name_ignored(ignored: &[Vec<u8>], left_out: &mut Vec<LeftOut>) -> u64 {
    left_out.extend(ignored.iter().take(NAMED).map(|path| LeftOut::new(path, "ignored by .gitignore")));
    ignored.len() as u64
}

/// The node that the last paragraph of a message names.
fn exported_node(message: &[u8]) -> Option<NodeId> {
    let text = String::from_utf8_lossy(message);
    let last = text.trim_end().rsplit("\n\n").next()?;
    let named = last.lines().filter_map(|line| line.strip_prefix("Esf-Node: ")).next_back()?;
    named.trim().parse().ok()
}

/// The head of a mail for `git am`: what would end the message early is indented.
fn mail_head(person: &str, seconds: i64, message: &str) -> String {
    let (subject, body) = message.split_once('\n').unwrap_or((message, ""));
    let mut text = format!("From {} Mon Sep 17 00:00:00 2001\n", "0".repeat(40));
    let (name, address) = person.rsplit_once(" <").unwrap_or((person, ">"));
    text.push_str(&format!("From: {} <{address}\nDate: @{seconds} +0000\n", encoded(name)));
    text.push_str(&format!("Subject: [PATCH] {}\nMIME-Version: 1.0\n", encoded(subject)));
    text.push_str("Content-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n\n");
    for line in body.trim_start_matches('\n').lines() {
        let ends = ["---", "diff -", "Index: ", "From ", ">From ", "From: ", "Date: ", "Subject: ", "-- "];
        if ends.iter().any(|end| line.starts_with(end)) {
            text.push(' ');
        }
        text.push_str(line);
        text.push('\n');
    }
    text.push_str("---\n\n");
    text
}

/// A header's text, as RFC 2047 wants it where it is not plain.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b" .,:;-_/+@#'!*()".contains(&byte);
    if text.bytes().all(plain) && !text.contains("=?") {
        return text.to_owned();
    }
    let mut words = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        let mut bytes = [0; 4];
        let coded: String = c.encode_utf8(&mut bytes).bytes().map(|byte| format!("={byte:02X}")).collect();
        if word.len() + coded.len() > 60 {
            words.push(std::mem::take(&mut word));
        }
        word.push_str(&coded);
    }
    words.push(word);
    words.iter().map(|word| format!("=?UTF-8?q?{word}?=")).collect::<Vec<_>>().join("\n ")
}
