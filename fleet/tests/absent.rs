//! The program without clusters and stores of objects, as it is built by default.
#![cfg(not(any(feature = "cluster", feature = "s3")))]

mod common;

use common::{Folder, four, refused};

#[test]
fn what_is_not_built_in_is_said_with_the_feature_that_has_it() {
    let folder = Folder::new();
    four(&folder);
    let shards = folder.name("shards");
    let wrong: [(&[&str], &str); 4] = [
        (
            &["query", "SELECT 1", &shards, "--cluster", "df://localhost"],
            "--features cluster",
        ),
        (&["cluster", "scheduler"], "--features cluster"),
        (&["cluster", "executor"], "--features cluster"),
        (&["query", "SELECT 1", "s3://bucket/x"], "--features s3"),
    ];
    for (arguments, expected) in wrong {
        let message = refused(arguments);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
}
