//! Node types as text: reading never fails but with diagnostics, and what was read can be written and reads again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_content::node_type::{NodeTypes, parse_cnd, write_cnd};

fuzz_target!(|text: &str| {
    let cnd = parse_cnd(text);
    let lines = u32::try_from(text.split('\n').count()).unwrap_or(u32::MAX);
    assert!(cnd.diagnostics.iter().all(|one| (1..=lines).contains(&one.line) && one.column > 0));
    let written = write_cnd(&cnd.types, &cnd.namespaces);
    let again = parse_cnd(&written);
    assert!(again.diagnostics.is_empty(), "{written}");
    assert_eq!((again.types, again.namespaces), (cnd.types.clone(), cnd.namespaces));
    // Definitions that are sound go with the standard set, and can be taken back.
    if let Ok(types) = NodeTypes::standard().with_definitions(&cnd.types) {
        let names: Vec<&str> = cnd.types.iter().map(|one| one.name.as_str()).collect();
        assert!(names.iter().all(|name| types.find(name).is_some()));
        if let Ok(types) = types.without_types(&names) {
            assert_eq!(types.custom_definitions().count(), 0);
        }
    }
});
