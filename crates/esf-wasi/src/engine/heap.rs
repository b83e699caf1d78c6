//! Keeps a preview 1 module's heap apart from the adapter's.
//!
//! The adapter takes pages of the module's memory for itself with `memory.grow`. Allocators that were built to be alone
//! (wasi-libc's before 2022, which Debian still ships) take everything up to `memory.size` for theirs, and both would
//! write to the same page. So the module is shown only what is its own: `memory.size` becomes a global, the end of
//! what the module itself had from the beginning or got by its last `memory.grow`, and `memory.grow` a function that
//! moves it. To the module the adapter's pages are somebody else's growth, which allocators allow for.
//! The rest of the module stays byte for byte what it was.

use std::borrow::Cow;

use wasm_encoder::{ConstExpr, Encode, Function, GlobalType, Module, RawSection, ValType};
use wasmparser::{Operator, Parser, Payload, TypeRef};

use super::module::ModuleError;

const GLOBALS: u8 = 6;
/// Sections that come after the globals.
const AFTER_GLOBALS: &[u8] = &[7, 8, 9, 10, 11, 12];

/// What is counted of a module, and where new things go.
#[derive(Default)]
struct Shape {
    types: u32,
    functions: u32,
    globals: u32,
    /// Pages that the memory begins with.
    pages: u64,
    /// Whether any function asks for the memory's size or grows it.
    asks: bool,
    has_globals: bool,
}

/// The module with its own view of its memory's end; unchanged if it never asks.
///
/// # Errors
/// [`ModuleError::Broken`] for what is no module.
pub(super) fn own(bytes: &[u8]) -> Result<Cow<'_, [u8]>, ModuleError> {
    let shape = shape(bytes)?;
    if !shape.asks {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut module = Module::new();
    let mut globals = shape.has_globals;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(ModuleError::broken)?;
        let Some((id, range)) = payload.as_section() else { continue };
        if !globals && AFTER_GLOBALS.contains(&id) {
            globals = true;
            module.section(&RawSection { id: GLOBALS, data: &[&[1], &*end(&shape)].concat() });
        }
        let data = &bytes[range];
        let changed = match &payload {
            Payload::TypeSection(section) => Some(with_one_more(data, section.count(), &grow_type())),
            Payload::FunctionSection(section) => {
                let mut index = Vec::new();
                shape.types.encode(&mut index);
                Some(with_one_more(data, section.count(), &index))
            }
            Payload::GlobalSection(section) => Some(with_one_more(data, section.count(), &end(&shape))),
            Payload::CodeSectionStart { .. } => Some(code(bytes, &shape)?),
            _ => None,
        };
        module.section(&RawSection { id, data: changed.as_deref().unwrap_or(data) });
    }
    Ok(Cow::Owned(module.finish()))
}

fn shape(bytes: &[u8]) -> Result<Shape, ModuleError> {
    let mut shape = Shape::default();
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(ModuleError::broken)? {
            Payload::TypeSection(section) => {
                for group in section {
                    let types = group.map_err(ModuleError::broken)?.into_types().count();
                    shape.types += u32::try_from(types).map_err(ModuleError::broken)?;
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    match import.map_err(ModuleError::broken)?.ty {
                        TypeRef::Func(_) => shape.functions += 1,
                        TypeRef::Global(_) => shape.globals += 1,
                        _ => {}
                    }
                }
            }
            Payload::FunctionSection(section) => shape.functions += section.count(),
            Payload::GlobalSection(section) => {
                shape.globals += section.count();
                shape.has_globals = true;
            }
            Payload::MemorySection(section) => {
                for memory in section.into_iter().take(1) {
                    shape.pages = memory.map_err(ModuleError::broken)?.initial;
                }
            }
            Payload::CodeSectionEntry(body) if !shape.asks => {
                for operator in body.get_operators_reader().map_err(ModuleError::broken)? {
                    let operator = operator.map_err(ModuleError::broken)?;
                    shape.asks |=
                        matches!(operator, Operator::MemorySize { .. } | Operator::MemoryGrow { .. });
                }
            }
            _ => {}
        }
    }
    Ok(shape)
}

/// A section that is a counted list, with one more entry.
fn with_one_more(data: &[u8], count: u32, entry: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    (count + 1).encode(&mut all);
    // A count may be written longer than it need be, but ends where its last byte says so.
    let counted = data.iter().position(|byte| byte & 0x80 == 0).map_or(data.len(), |last| last + 1);
    all.extend_from_slice(&data[counted..]);
    all.extend_from_slice(entry);
    all
}

/// `(func (param i32) (result i32))`.
fn grow_type() -> Vec<u8> {
    vec![0x60, 1, 0x7f, 1, 0x7f]
}

/// The global: the end of the module's own memory in pages.
fn end(shape: &Shape) -> Vec<u8> {
    let mut bytes = Vec::new();
    GlobalType { val_type: ValType::I32, mutable: true, shared: false }.encode(&mut bytes);
    ConstExpr::i32_const(u32::try_from(shape.pages).unwrap_or(u32::MAX).cast_signed()).encode(&mut bytes);
    bytes
}

/// The code with each question for the size or for more answered by ours, and our function at the end.
fn code(bytes: &[u8], shape: &Shape) -> Result<Vec<u8>, ModuleError> {
    let (mut size, mut grow) = (vec![0x23], vec![0x10]);
    shape.globals.encode(&mut size);
    shape.functions.encode(&mut grow);
    let (mut bodies, mut count) = (Vec::new(), 1u32);
    for payload in Parser::new(0).parse_all(bytes) {
        let Payload::CodeSectionEntry(body) = payload.map_err(ModuleError::broken)? else { continue };
        let (mut copied, mut changed) = (body.range().start, Vec::new());
        let mut operators = body.get_operators_reader().map_err(ModuleError::broken)?;
        while !operators.eof() {
            let (operator, at) = operators.read_with_offset().map_err(ModuleError::broken)?;
            let ours = match operator {
                Operator::MemorySize { .. } => &size,
                Operator::MemoryGrow { .. } => &grow,
                _ => continue,
            };
            changed.extend_from_slice(&bytes[copied..at]);
            changed.extend_from_slice(ours);
            copied = operators.original_position();
        }
        changed.extend_from_slice(&bytes[copied..body.range().end]);
        changed.encode(&mut bodies);
        count += 1;
    }
    let mut code = Vec::new();
    count.encode(&mut code);
    code.extend_from_slice(&bodies);
    grow_function(shape.globals).encode(&mut code);
    Ok(code)
}

/// Grows the memory and notes its end; asked for nothing it answers what the module knows, without growing.
fn grow_function(end: u32) -> Function {
    let mut function = Function::new([(1, ValType::I32)]);
    function
        .instructions()
        .local_get(0)
        .i32_eqz()
        .if_(wasm_encoder::BlockType::Empty)
        .global_get(end)
        .return_()
        .end()
        .local_get(0)
        .memory_grow(0)
        .local_tee(1)
        .i32_const(-1)
        .i32_ne()
        .if_(wasm_encoder::BlockType::Empty)
        .local_get(1)
        .local_get(0)
        .i32_add()
        .global_set(end)
        .end()
        .local_get(1)
        .end();
    function
}

#[cfg(test)]
mod tests {
    use wasmtime::{Engine, Instance, Memory, Module, Store};

    use super::*;

    /// Asks and grows, while somebody else grows in between.
    fn run(text: &str, script: &[(&str, i32)]) -> Vec<i32> {
        let bytes = wat::parse_str(text).expect("a module");
        let bytes = own(&bytes).expect("is read");
        let engine = Engine::default();
        let module = Module::new(&engine, &*bytes).expect("is valid");
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).expect("starts");
        let memory: Memory = instance.get_memory(&mut store, "memory").expect("its memory");
        let mut call = |(name, pages): &(&str, i32)| match *name {
            "other" => i32::try_from(memory.grow(&mut store, 1).expect("grows")).expect("few"),
            name => {
                let function = instance.get_typed_func::<i32, i32>(&mut store, name).expect("a function");
                function.call(&mut store, *pages).expect("returns")
            }
        };
        script.iter().map(&mut call).collect()
    }

    const ASKS: &str = r#"
        (func (export "size") (param i32) (result i32) memory.size)
        (func (export "grow") (param i32) (result i32) (block (result i32) local.get 0 memory.grow))"#;
    const SCRIPT: &[(&str, i32)] = &[
        ("size", 0),
        ("other", 0),
        ("size", 0),
        ("grow", 0),
        ("grow", 2),
        ("size", 0),
        ("other", 0),
        ("size", 0),
        ("grow", 60000),
        ("size", 0),
        ("grow", 1),
        ("size", 0),
    ];

    #[test]
    fn a_module_sees_the_end_of_what_is_its_own() {
        let expected = [2, 2, 2, 2, 3, 5, 5, 5, -1, 5, 6, 7];
        for globals in ["", "(global (mut i32) (i32.const 7)) (global $g i64 (i64.const 1))"] {
            let text = format!("(module (memory (export \"memory\") 2 100) {globals} {ASKS})");
            assert_eq!(run(&text, SCRIPT), expected, "{globals}");
        }
    }

    #[test]
    fn a_module_that_does_not_ask_stays_what_it_was() {
        let bytes = wat::parse_str("(module (memory (export \"memory\") 1) (func (export \"_start\")))")
            .expect("text");
        assert!(matches!(own(&bytes).expect("is read"), Cow::Borrowed(_)));
    }
}
