//! Rows of the state plane: seal, import, squash, each against the same bytes moved plainly.

use std::fs;
use std::path::{Path, PathBuf};

use esf_core::manifest::RootPin;
use esf_core::policy::Durability;
use esf_core::{AttemptId, Problem};
use esf_layerstack::SealRequest;

use super::{Lab, Row, control, failed, floor, timed};

pub(super) fn rows(lab: &mut Lab<'_>) -> Result<(), Problem> {
    let seals = [("seal_1", 1), ("seal_100", 100), ("seal_10000", 10_000)];
    if seals.iter().any(|(name, _)| lab.wants(name)) || lab.wants("seal_nothing") {
        let node = control::group(lab, "seal-base", 1000, 100)?;
        let base = lab.store.graph().node(node).map_err(|error| error.problem())?.root();
        let base = base.ok_or_else(|| failed("seal", "the canonical node has a root"))?;
        for (name, files) in seals {
            if lab.wants(name) {
                seal(lab, name, files, &base)?;
            }
        }
        if lab.wants("seal_nothing") {
            seal_nothing(lab, &base)?;
        }
    }
    if lab.wants("import") {
        import(lab)?;
    }
    if lab.wants("squash") {
        squash(lab)?;
    }
    Ok(())
}

fn attempt(number: u64) -> AttemptId {
    let mut bytes = [0xbe; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    AttemptId::from_bytes(bytes)
}

fn fill(upper: &Path, files: usize, salt: u64) -> Result<(), Problem> {
    let fill = || -> std::io::Result<()> {
        for number in 0..files {
            let directory = upper.join(format!("new{:03}", number / 100));
            if number % 100 == 0 {
                fs::create_dir_all(&directory)?;
            }
            let mut content = format!("{salt} {number}\n").into_bytes();
            content.resize(4096, b'x');
            fs::write(directory.join(format!("n{number:05}")), content)?;
        }
        Ok(())
    };
    fill().map_err(|error| failed("fill an upper", error))
}

pub(super) fn seal_one(lab: &Lab<'_>, base: &RootPin, id: AttemptId, key: &str) -> Result<RootPin, Problem> {
    let stack = lab.store.stack();
    let request = SealRequest {
        attempt: id,
        base: *base,
        key: key.to_owned(),
        request_digest: esf_core::digest::RequestDigest::new(esf_core::Digest::of(key.as_bytes())),
        durability: Durability::Full,
    };
    let prepared = stack.seal(&request, &()).map_err(|error| error.problem())?;
    let pin = *prepared.sealed().pin();
    stack.settle_seal(prepared, true).map_err(|error| error.problem())?;
    Ok(pin)
}

fn seal(lab: &mut Lab<'_>, name: &'static str, files: usize, base: &RootPin) -> Result<(), Problem> {
    let samples = if files >= 10_000 { lab.samples.min(7) } else { lab.samples };
    let floor_place = lab.place.join(format!("floor-{name}"));
    fs::create_dir_all(&floor_place).map_err(|error| failed("create", error))?;
    let (mut ours, mut bare) = (0_u64, 0_u64);
    let (value, floor) = lab.pair(
        samples,
        || {
            ours += 1;
            let id = attempt(ours << 20 | files as u64);
            let workspace = lab.store.stack().open_workspace(base, id).map_err(|error| error.problem())?;
            fill(&workspace.upper, files, ours)?;
            timed(|| seal_one(lab, base, id, &format!("{name}-{ours}")))
        },
        || {
            bare += 1;
            let upper: PathBuf = floor_place.join(format!("upper{bare}"));
            fs::create_dir_all(&upper).map_err(|error| failed("create", error))?;
            fill(&upper, files, bare | 1 << 40)?;
            floor::bare_seal(&upper, &floor_place.join(format!("sealed{bare}")))
        },
    )?;
    let what = Some((floor, "walk, hash, sync and rename of the same files"));
    lab.add(Row { name, value, unit: "us", floor: what, must: Some(2.0), aim: Some(1.3), samples });
    Ok(())
}

fn seal_nothing(lab: &mut Lab<'_>, base: &RootPin) -> Result<(), Problem> {
    let mut times = Vec::new();
    for number in 0..lab.samples as u64 {
        let id = attempt(number | 1 << 50);
        lab.store.stack().open_workspace(base, id).map_err(|error| error.problem())?;
        let mut sealed = None;
        times.push(timed(|| {
            sealed = Some(seal_one(lab, base, id, &format!("seal-nothing-{number}"))?);
            Ok(())
        })?);
        if sealed.is_none_or(|pin| pin.root != base.root) {
            return Err(failed("seal_nothing", "the root changed although nothing did"));
        }
    }
    let value = super::median_us(times);
    lab.add(Row {
        name: "seal_nothing",
        value,
        unit: "us",
        floor: None,
        must: None,
        aim: None,
        samples: lab.samples,
    });
    Ok(())
}

fn import(lab: &mut Lab<'_>) -> Result<(), Problem> {
    let tree = lab.place.join("import-tree");
    control::make_tree(&tree, 10_000, 8192)?;
    let (mut ours, mut copies) = (0_u64, 0_u64);
    let samples = lab.samples.min(7);
    let options = esf_layerstack::ImportOptions::default();
    let (value, copied) = lab.pair(
        samples,
        || {
            ours += 1;
            timed(|| {
                lab.store.stack().import_directory(&tree, &options, &()).map_err(|error| error.problem())
            })
        },
        || {
            copies += 1;
            let to = lab.place.join(format!("copy{copies}"));
            timed(|| {
                floor::command("cp", &["-a".as_ref(), tree.as_os_str(), to.as_os_str()])?;
                floor::command("sync", &["-f".as_ref(), to.as_os_str()])
            })
        },
    )?;
    let what = Some((copied, "cp -a and sync of the same 10,000 files"));
    lab.add(Row {
        name: "import_10000",
        value,
        unit: "us",
        floor: what,
        must: Some(1.5),
        aim: Some(1.1),
        samples,
    });
    Ok(())
}

fn squash(lab: &mut Lab<'_>) -> Result<(), Problem> {
    let node = control::group(lab, "squash-base", 77_000, 16)?;
    let base = lab.store.graph().node(node).map_err(|error| error.problem())?.root();
    let base = base.ok_or_else(|| failed("squash", "the canonical node has a root"))?;
    let (mut ours, mut copies) = (0_u64, 0_u64);
    let samples = lab.samples.min(5);
    let tree = lab.place.join("squash-base");
    let (value, linked) = lab.pair(
        samples,
        || {
            ours += 1;
            let id = attempt(ours | 1 << 60);
            let workspace = lab.store.stack().open_workspace(&base, id).map_err(|error| error.problem())?;
            fill(&workspace.upper, 10, ours | 1 << 41)?;
            let pin = seal_one(lab, &base, id, &format!("squash-{ours}"))?;
            timed(|| lab.store.stack().squash(&pin).map_err(|error| error.problem()))
        },
        || {
            copies += 1;
            let to = lab.place.join(format!("links{copies}"));
            timed(|| floor::command("cp", &["-al".as_ref(), tree.as_os_str(), to.as_os_str()]))
        },
    )?;
    let what = Some((linked, "cp -al of the same 77,000 files"));
    lab.add(Row {
        name: "squash_77000",
        value,
        unit: "us",
        floor: what,
        must: Some(2.0),
        aim: Some(1.2),
        samples,
    });
    Ok(())
}
