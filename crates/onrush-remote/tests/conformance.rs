//! The store keeps the promises of the trait, on an S3 server in this process.

use crate::common::block_on;
use onrush_store::testing::conformance;
use testing_s3::Bucket;

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

#[test]
fn a_real_service_is_a_store() {
    let Some(store) = crate::common::real() else {
        return;
    };
    block_on(conformance(&store()));
}
