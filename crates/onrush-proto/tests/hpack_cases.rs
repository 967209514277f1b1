//! The cases of hpack-test-case: header blocks of 14 encoders, each with the fields that it stands
//! for. `cargo xtask setup --nightly` fetches them with a package that has them.

use onrush_proto::http2::hpack::Decoder;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The cases in the folder of the tools, which is in the target directory.
const FOLDER: &str = "tools/hpack-cases/copies/httlib-hpack/fixtures";
const STORIES: usize = 446;
const BLOCKS: usize = 47_142;

/// The files of the cases. `None`: they are missing, and the test is skipped, but fails with `CI`.
fn stories() -> Option<Vec<PathBuf>> {
    let test = env::current_exe().expect("a program");
    let folder = test.ancestors().nth(3).expect("the target directory");
    let folder = folder.join(FOLDER);
    let children = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder");
        entries
            .map(|entry| entry.expect("an entry").path())
            .collect()
    };
    if !folder.is_dir() {
        let missing = format!("{} is missing", folder.display());
        assert!(env::var_os("CI").is_none(), "{missing}");
        println!("skipped: {missing}; `cargo xtask setup --nightly` fetches it");
        return None;
    }
    let encoders = children(&folder);
    let encoders = encoders.iter().filter(|path| path.is_dir());
    Some(encoders.flat_map(|encoder| children(encoder)).collect())
}

/// The bytes of a block.
fn bytes(hex: &str) -> Vec<u8> {
    let pairs = (0..hex.len()).step_by(2);
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits");
    pairs.map(byte).collect()
}

/// The fields of a case, each of which is an object with one member.
fn expected(case: &Value) -> Vec<(Vec<u8>, Vec<u8>)> {
    let fields = case["headers"].as_array().expect("a list").iter();
    let fields = fields.flat_map(|field| field.as_object().expect("a field"));
    let bytes = |(name, value): (&String, &Value)| {
        let value = value.as_str().expect("a text");
        (name.clone().into_bytes(), value.as_bytes().to_vec())
    };
    fields.map(bytes).collect()
}

#[test]
#[ignore = "nightly"] // the cases come from a registry
fn blocks_of_other_encoders_have_the_fields_that_they_stand_for() {
    let Some(stories) = stories() else {
        return;
    };
    assert_eq!(stories.len(), STORIES);
    let mut blocks = 0;
    for path in stories {
        let text = fs::read_to_string(&path).expect("a file");
        let story: Value = serde_json::from_str(&text).expect("JSON");
        // The blocks of a story share a table.
        let mut decoder = Decoder::new();
        for case in story["cases"].as_array().expect("a list") {
            let block = bytes(case["wire"].as_str().expect("a text"));
            let mut fields = Vec::new();
            let add = |name: &[u8], value: &[u8]| fields.push((name.to_vec(), value.to_vec()));
            let decoded = decoder.decode(&block, add);
            assert!(decoded.is_ok(), "{}: {decoded:?}: {case}", path.display());
            assert!(fields == expected(case), "{}: {case}", path.display());
            blocks += 1;
        }
    }
    assert_eq!(blocks, BLOCKS);
}
