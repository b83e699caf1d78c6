//! Trajectories as a Parquet file, a row each. Every column is either a number, a text or a truth value that may be
//! null, or a list of such. Invariant: no more than one row group is in memory, which ends at [`ROWS`] rows or
//! [`BYTES`] bytes. Token arrays of all steps lie one after the other; `*_lengths` says where each step ends.

use std::io::Write;
use std::sync::Arc;

use esf_core::Problem;
use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::{Value, json};

use super::messages;
use super::trajectory::{Numbers, Trajectory};

/// Most rows of a row group.
const ROWS: usize = 4096;
/// Most bytes of a row group, about.
const BYTES: usize = 32 << 20;

/// What a column holds; a list where it says so.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Int,
    Real,
    Flag,
    Texts,
    Ints,
    Reals,
    Messages,
}

/// The columns, in order; [`cells`] has a cell for each.
const COLUMNS: &[(&str, Kind)] = &[
    ("run_id", Kind::Text),
    ("prompt_id", Kind::Text),
    ("prompt_index", Kind::Int),
    ("sibling_id", Kind::Text),
    ("sibling_index", Kind::Int),
    ("group_size", Kind::Int),
    ("revision", Kind::Int),
    ("trial", Kind::Int),
    ("attempt_ids", Kind::Texts),
    ("task_id", Kind::Text),
    ("task_split", Kind::Text),
    ("seed", Kind::Int),
    ("policy_name", Kind::Text),
    ("policy_version_start", Kind::Int),
    ("policy_version_end", Kind::Int),
    ("generation_source", Kind::Text),
    ("root_id", Kind::Text),
    ("node_id", Kind::Text),
    ("final_node_id", Kind::Text),
    ("environment_digest", Kind::Text),
    ("evaluators", Kind::Texts),
    ("status", Kind::Text),
    ("usable", Kind::Flag),
    ("reward", Kind::Real),
    ("terminated", Kind::Flag),
    ("truncated", Kind::Text),
    ("stop_reason", Kind::Text),
    ("failure_class", Kind::Text),
    ("failure_stage", Kind::Text),
    ("cancelled", Kind::Text),
    ("rewards_json", Kind::Text),
    ("metrics_json", Kind::Text),
    ("sampler_json", Kind::Text),
    ("cost_json", Kind::Text),
    ("parent_sibling", Kind::Text),
    ("fork_step", Kind::Int),
    ("owned_from_step", Kind::Int),
    ("messages", Kind::Messages),
    ("step_rewards", Kind::Reals),
    ("step_nodes", Kind::Texts),
    ("step_policy_versions", Kind::Ints),
    ("prompt_token_ids", Kind::Ints),
    ("prompt_lengths", Kind::Ints),
    ("completion_token_ids", Kind::Ints),
    ("completion_lengths", Kind::Ints),
    ("logprobs", Kind::Reals),
    ("loss_mask", Kind::Ints),
];

/// Fields of a message, each a text.
const MESSAGE: [&str; 4] = ["role", "content", "tool_calls", "tool_call_id"];

/// A column's value in a row.
enum Cell {
    Text(Option<String>),
    Int(Option<i64>),
    Real(Option<f64>),
    Flag(Option<bool>),
    Texts(Vec<Option<String>>),
    Ints(Vec<Option<i64>>),
    Reals(Vec<Option<f64>>),
    Messages(Vec<[Option<String>; 4]>),
}

fn schema() -> String {
    let list = |name: &str, element: &str| {
        format!("required group {name} (LIST) {{ repeated group list {{ {element} }} }}\n")
    };
    let mut text = "message rollout {\n".to_owned();
    for (name, kind) in COLUMNS {
        text.push_str(&match kind {
            Kind::Text => format!("optional binary {name} (STRING);\n"),
            Kind::Int => format!("optional int64 {name};\n"),
            Kind::Real => format!("optional double {name};\n"),
            Kind::Flag => format!("optional boolean {name};\n"),
            Kind::Texts => list(name, "optional binary element (STRING);"),
            Kind::Ints => list(name, "optional int64 element;"),
            Kind::Reals => list(name, "optional float element;"),
            Kind::Messages => {
                let fields = MESSAGE.map(|field| format!("optional binary {field} (STRING);")).join(" ");
                list(name, &format!("required group element {{ {fields} }}"))
            }
        });
    }
    text + "}"
}

/// Values of one leaf, with its levels: a list is empty at 0, has a null at 1 and a value at 2; what is no list is
/// null at 0 and has a value at 1.
struct Leaf<T: DataType> {
    values: Vec<T::T>,
    definition: Vec<i16>,
    repetition: Option<Vec<i16>>,
}

impl<T: DataType> Leaf<T> {
    fn new(list: bool) -> Self {
        Self { values: Vec::new(), definition: Vec::new(), repetition: list.then(Vec::new) }
    }

    fn one(&mut self, value: Option<T::T>) {
        self.definition.push(i16::from(value.is_some()));
        self.values.extend(value);
    }

    fn list(&mut self, items: impl IntoIterator<Item = Option<T::T>>) {
        let repetition = self.repetition.get_or_insert_default();
        let before = repetition.len();
        for item in items {
            repetition.push(i16::from(repetition.len() > before));
            self.definition.push(1 + i16::from(item.is_some()));
            self.values.extend(item);
        }
        if repetition.len() == before {
            repetition.push(0);
            self.definition.push(0);
        }
    }

    fn write(&mut self, mut column: SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let writer = column.typed::<T>();
        writer.write_batch(&self.values, Some(&self.definition), self.repetition.as_deref())?;
        column.close()?;
        let list = self.repetition.is_some();
        *self = Self::new(list);
        Ok(())
    }
}

/// The leaves of the columns, each of the kind that its values are.
enum Leaves {
    Text(Leaf<ByteArrayType>),
    Int(Leaf<Int64Type>),
    Double(Leaf<DoubleType>),
    Float(Leaf<FloatType>),
    Flag(Leaf<BoolType>),
}

/// Writes rows to a file.
pub(super) struct Writer<W: Write + Send> {
    file: SerializedFileWriter<W>,
    leaves: Vec<Leaves>,
    rows: usize,
    bytes: usize,
}

fn failed(error: &ParquetError) -> Problem {
    Problem::new(esf_core::Class::Failure, "io", format!("cannot write the Parquet file: {error}"))
}

fn bytes(text: String) -> ByteArray {
    ByteArray::from(text.into_bytes())
}

impl<W: Write + Send> Writer<W> {
    pub(super) fn new(out: W, run: &Value) -> Result<Self, Problem> {
        let schema = parse_message_type(&schema()).expect("the schema is one");
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(format!("esf version {}", env!("CARGO_PKG_VERSION")))
            .set_key_value_metadata(Some(vec![KeyValue::new("esf.run".to_owned(), run.to_string())]))
            .build();
        let file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties));
        let leaves = COLUMNS.iter().flat_map(|(_, kind)| match kind {
            Kind::Text => vec![Leaves::Text(Leaf::new(false))],
            Kind::Int => vec![Leaves::Int(Leaf::new(false))],
            Kind::Real => vec![Leaves::Double(Leaf::new(false))],
            Kind::Flag => vec![Leaves::Flag(Leaf::new(false))],
            Kind::Texts => vec![Leaves::Text(Leaf::new(true))],
            Kind::Ints => vec![Leaves::Int(Leaf::new(true))],
            Kind::Reals => vec![Leaves::Float(Leaf::new(true))],
            Kind::Messages => MESSAGE.map(|_| Leaves::Text(Leaf::new(true))).into(),
        });
        let leaves = leaves.collect();
        Ok(Self { file: file.map_err(|error| failed(&error))?, leaves, rows: 0, bytes: 0 })
    }

    pub(super) fn row(&mut self, trajectory: &Trajectory<'_>) -> Result<(), Problem> {
        let mut leaves = self.leaves.iter_mut();
        for cell in cells(trajectory) {
            self.bytes += cell.bytes();
            match cell {
                Cell::Messages(messages) => {
                    for field in 0..MESSAGE.len() {
                        let texts = messages.iter().map(|message| message[field].clone().map(bytes));
                        match leaves.next() {
                            Some(Leaves::Text(leaf)) => leaf.list(texts),
                            _ => unreachable!("a message has a leaf of text for each field"),
                        }
                    }
                }
                cell => put(leaves.next().expect("each cell has a leaf"), cell),
            }
        }
        self.rows += 1;
        if self.rows >= ROWS || self.bytes >= BYTES {
            self.flush().map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ParquetError> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        let mut leaves = self.leaves.iter_mut();
        while let Some(column) = group.next_column()? {
            match leaves.next().expect("each leaf of the schema has its values") {
                Leaves::Text(leaf) => leaf.write(column),
                Leaves::Int(leaf) => leaf.write(column),
                Leaves::Double(leaf) => leaf.write(column),
                Leaves::Float(leaf) => leaf.write(column),
                Leaves::Flag(leaf) => leaf.write(column),
            }?;
        }
        group.close()?;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }

    /// Ends the file.
    pub(super) fn finish(mut self) -> Result<(), Problem> {
        self.flush().map_err(|error| failed(&error))?;
        self.file.close().map_err(|error| failed(&error))?;
        Ok(())
    }
}

fn put(leaf: &mut Leaves, cell: Cell) {
    match (leaf, cell) {
        (Leaves::Text(leaf), Cell::Text(text)) => leaf.one(text.map(bytes)),
        (Leaves::Int(leaf), Cell::Int(number)) => leaf.one(number),
        (Leaves::Double(leaf), Cell::Real(number)) => leaf.one(number),
        (Leaves::Flag(leaf), Cell::Flag(flag)) => leaf.one(flag),
        (Leaves::Text(leaf), Cell::Texts(texts)) => leaf.list(texts.into_iter().map(|text| text.map(bytes))),
        (Leaves::Int(leaf), Cell::Ints(numbers)) => leaf.list(numbers),
        (Leaves::Float(leaf), Cell::Reals(numbers)) => {
            leaf.list(numbers.into_iter().map(|number| number.map(|number| number as f32)));
        }
        _ => unreachable!("cells are of their columns' kinds"),
    }
}

impl Cell {
    /// About how many bytes it takes.
    fn bytes(&self) -> usize {
        let text = |text: &Option<String>| 8 + text.as_ref().map_or(0, String::len);
        match self {
            Self::Text(one) => text(one),
            Self::Int(_) | Self::Real(_) | Self::Flag(_) => 10,
            Self::Texts(texts) => texts.iter().map(text).sum(),
            Self::Ints(numbers) => numbers.len() * 12,
            Self::Reals(numbers) => numbers.len() * 12,
            Self::Messages(messages) => messages.iter().flatten().map(text).sum(),
        }
    }
}

/// A row, in the order of [`COLUMNS`].
fn cells(trajectory: &Trajectory<'_>) -> Vec<Cell> {
    let head = trajectory.head();
    let tokens = Tokens::of(trajectory);
    let text = |name: &str| Cell::Text(head[name].as_str().map(str::to_owned));
    let int = |name: &str| Cell::Int(head[name].as_i64());
    let flag = |name: &str| Cell::Flag(head[name].as_bool());
    let as_json = |name: &str| Cell::Text((!head[name].is_null()).then(|| head[name].to_string()));
    let texts = |values: Vec<String>| Cell::Texts(values.into_iter().map(Some).collect());
    let whole = |number: Option<u64>| number.and_then(|number| i64::try_from(number).ok());
    let (start, end) = trajectory.span();
    let failure = trajectory.outcome().and_then(|outcome| outcome.failure.as_ref());
    let turns = &trajectory.turns;
    let step_policy = turns.iter().map(|turn| whole(turn.step.policy_version)).collect();
    vec![
        text("run_id"),
        text("prompt_id"),
        int("prompt_index"),
        text("sibling_id"),
        int("sibling_index"),
        int("group_size"),
        int("revision"),
        int("trial"),
        texts(trajectory.attempts().iter().map(ToString::to_string).collect()),
        Cell::Text(Some(trajectory.prompt.task.id.clone())),
        Cell::Text(trajectory.prompt.task.split.clone()),
        int("seed"),
        Cell::Text(Some(trajectory.run.policy.name.clone())),
        Cell::Int(whole(start)),
        Cell::Int(whole(end)),
        text("generation_source"),
        text("root_id"),
        text("node_id"),
        text("final_node_id"),
        text("environment_digest"),
        texts(trajectory.run.evaluators.iter().map(|evaluator| json!(evaluator).to_string()).collect()),
        text("status"),
        flag("usable"),
        Cell::Real(trajectory.reward()),
        flag("terminated"),
        text("truncated"),
        text("stop_reason"),
        Cell::Text(failure.map(|failure| failure.class.as_str().to_owned())),
        Cell::Text(failure.map(|failure| failure.stage.clone())),
        text("cancelled"),
        as_json("rewards"),
        as_json("metrics"),
        as_json("sampler"),
        as_json("cost"),
        text("parent_sibling"),
        int("fork_step"),
        int("owned_from_step"),
        Cell::Messages(messages::messages(trajectory).iter().map(message).collect()),
        Cell::Reals(turns.iter().map(|turn| turn.step.reward).collect()),
        texts(turns.iter().map(|turn| turn.step.node_after.to_string()).collect()),
        Cell::Ints(step_policy),
        tokens.prompt,
        tokens.prompt_lengths,
        tokens.completion,
        tokens.completion_lengths,
        tokens.logprobs,
        tokens.loss_mask,
    ]
}

fn message(message: &messages::Message) -> [Option<String>; 4] {
    MESSAGE.map(|field| match message.fields.get(field) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => Some(other.to_string()),
    })
}

/// The token arrays of all steps.
struct Tokens {
    prompt: Cell,
    prompt_lengths: Cell,
    completion: Cell,
    completion_lengths: Cell,
    logprobs: Cell,
    loss_mask: Cell,
}

impl Tokens {
    /// `loss_mask` and `logprobs` are as long as the completion. The mask is 0 in shared steps, and 1 where nothing
    /// else was said; a log probability is null where none was recorded.
    fn of(trajectory: &Trajectory<'_>) -> Self {
        let (mut prompt, mut prompt_lengths) = (Vec::new(), Vec::new());
        let (mut completion, mut completion_lengths) = (Vec::new(), Vec::new());
        let (mut logprobs, mut loss_mask) = (Vec::new(), Vec::new());
        for turn in &trajectory.turns {
            let whole = |name: &str| turn.arrays.get(name).and_then(Numbers::whole).unwrap_or_default();
            let length = |numbers: &[i64]| i64::try_from(numbers.len()).ok();
            let (read, sampled) = (whole("prompt_token_ids"), whole("completion_token_ids"));
            prompt_lengths.push(length(&read));
            completion_lengths.push(length(&sampled));
            match turn.arrays.get("logprobs").map(Numbers::real) {
                Some(numbers) if numbers.len() == sampled.len() => {
                    logprobs.extend(numbers.into_iter().map(Some))
                }
                _ => logprobs.extend(sampled.iter().map(|_| None)),
            }
            match turn.arrays.get("loss_mask").map(Numbers::real) {
                _ if !turn.owned => loss_mask.extend(sampled.iter().map(|_| Some(0))),
                Some(mask) if mask.len() == sampled.len() => {
                    loss_mask.extend(mask.into_iter().map(|number| Some(i64::from(number != 0.0))));
                }
                _ => loss_mask.extend(sampled.iter().map(|_| Some(1))),
            }
            prompt.extend(read.into_iter().map(Some));
            completion.extend(sampled.into_iter().map(Some));
        }
        Self {
            prompt: Cell::Ints(prompt),
            prompt_lengths: Cell::Ints(prompt_lengths),
            completion: Cell::Ints(completion),
            completion_lengths: Cell::Ints(completion_lengths),
            logprobs: Cell::Reals(logprobs),
            loss_mask: Cell::Ints(loss_mask),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_a_leaf_for_each_field() {
        let schema = parse_message_type(&schema()).unwrap();
        let leaves = parquet::schema::types::SchemaDescriptor::new(Arc::new(schema)).num_columns();
        assert_eq!(leaves, COLUMNS.len() + MESSAGE.len() - 1);
    }

    #[test]
    fn levels_tell_an_empty_list_from_a_null() {
        let mut leaf = Leaf::<Int64Type>::new(true);
        leaf.list([Some(1), None]);
        leaf.list([]);
        leaf.list([Some(2)]);
        assert_eq!(leaf.definition, [2, 1, 0, 2]);
        assert_eq!(leaf.repetition.unwrap(), [0, 1, 0, 0]);
        assert_eq!(leaf.values, [1, 2]);
    }
}
