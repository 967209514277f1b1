//! The store keeps the promises of the trait, on an S3 server in this process.

mod common;

use common::{Bucket, block_on};
use onrush_store::testing::conformance;

#[test]
fn a_bucket_is_a_store() {
    let bucket = Bucket::new();
    block_on(conformance(&bucket.store("s3://bucket")));
}

#[test]
fn a_prefix_is_a_store() {
    let bucket = Bucket::new();
    block_on(conformance(&bucket.store("s3://bucket/some/prefix")));
}

#[test]
fn a_bucket_of_ceph_is_a_store() {
    let bucket = Bucket::ceph();
    block_on(conformance(&bucket.store("s3://bucket")));
}

/// A service that runs elsewhere: `ONRUSH_TEST_S3` is its address, key and secret, separated by
/// spaces, and the bucket `conformance` exists. Without it, the test does nothing.
#[test]
fn a_real_service_is_a_store() {
    let Ok(service) = std::env::var("ONRUSH_TEST_S3") else {
        return;
    };
    let [endpoint, key, secret] = service.split(' ').collect::<Vec<_>>()[..] else {
        panic!("ONRUSH_TEST_S3 is not an address, a key and a secret");
    };
    let prefix = std::process::id();
    let location = format!("s3://conformance/{prefix}").parse();
    let location = location.expect("a location");
    let options = onrush_remote::Options::default();
    let store = onrush_remote::RemoteStore::at(endpoint, (key, secret), location, options);
    block_on(conformance(&store.expect("a store")));
}
