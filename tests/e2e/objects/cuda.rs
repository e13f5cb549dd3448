//! Objects in the memory of a GPU: charged from their begin, shared, and free again. Run under the
//! stand-in for the driver (`tests/objects/run.sh`), or on a GPU.

use crate::common::not_run;
use crate::support::broker::{Broker, Setup};
use crate::support::wait::{eventually, patience};
use fdbroker_client::cuda::Device;
use fdbroker_client::{ErrorCode, NewObject, ObjectOptions, Place};
use fdbroker_protocol::{Resource, Scope};
use std::time::Duration;

const SIZE: u64 = 1 << 20;

/// The first GPU; names the test as not run without one.
fn device(test_name: &str) -> Option<Device> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            not_run(test_name, &format!("no GPU, nor a stand-in for one: {error}"));
            None
        }
    }
}

#[test]
fn cuda_object_when_sealed_then_readers_have_its_bytes_and_stat_says_that_it_is_cooperative() {
    const NAME: &str =
        "cuda_object_when_sealed_then_readers_have_its_bytes_and_stat_says_that_it_is_cooperative";
    let Some(device) = device(NAME) else { return };
    let broker = Broker::start();
    let (maker, reader) = (broker.client("maker"), broker.client("reader"));
    let new = [NewObject::new("gpu/a", SIZE), NewObject::new("gpu/b", 100)];
    let options = ObjectOptions::default().keep(Duration::ZERO);
    let objects = maker.objects();
    let mut group = objects.create(&new, Place::Cuda(&device), options, patience()).expect("begun");
    let held = broker.status().uses.held_bytes.now.get();
    assert!(held >= SIZE + 100, "charged from the begin: {held}");
    group.write_at(0, 0, b"first").expect("in bounds");
    group.write_at(1, 50, b"second").expect("in bounds");
    let version = group.seal(patience()).expect("sealed");
    drop((objects, maker));

    let objects = reader.objects().with_cuda(&device);
    let all = objects.get_many(&["gpu/b", "gpu/a"], patience()).expect("it is kept");
    let mut bytes = [0; 6];
    all[0].read_at(50, &mut bytes).expect("in bounds");
    assert_eq!(&bytes, b"second");
    all[1].read_at(0, &mut bytes[..5]).expect("in bounds");
    assert_eq!(&bytes[..5], b"first");
    assert_eq!((all[0].version(), all[1].version()), (version, version));
    assert_eq!(
        all[0].bytes().expect_err("the kernel has not sealed it").code,
        ErrorCode::NotSupported
    );
    let info = objects.stat("gpu/a", patience()).expect("known");
    assert!(info.cooperative && info.kept, "{info:?}");
    let uses = broker.status().uses;
    assert_eq!((uses.kept_gpu_bytes.now.get(), uses.kept_fds.now.get()), (held, 1));
    drop(all);
    let doomed = [("gpu/a", None), ("gpu/b", None)];
    objects.delete_many(&doomed, patience()).expect("deleted");
    eventually("nothing is held", || broker.status().uses.held_bytes.now.get() == 0);
    drop((objects, reader));
    broker.assert_nothing_left();
}

// The use of the GPU was never limited (v6d).
#[test]
fn cuda_object_when_the_cap_on_held_bytes_is_full_then_no_quota_names_it() {
    const NAME: &str = "cuda_object_when_the_cap_on_held_bytes_is_full_then_no_quota_names_it";
    let Some(device) = device(NAME) else { return };
    let most = 3 * device.granularity() as u64;
    let broker = Setup::new().config(&format!("[caps.domain]\nheld_bytes = {most}")).start();
    let client = broker.client("maker");
    let objects = client.objects();
    let create = |name: &str, size: u64| {
        let new = [NewObject::new(name, size)];
        objects.create(&new, Place::Cuda(&device), ObjectOptions::default(), patience())
    };
    let unit = device.granularity() as u64;
    let first = create("a", 2 * unit).expect("it fits");
    let error = create("b", 2 * unit).expect_err("4 units");
    let status = error.status.expect("the broker says it");
    assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
    assert_eq!(Resource::from_number(status.resource), Some(Resource::HeldBytes), "{error}");
    assert_eq!(status.scope(), Some(Scope::Domain), "{error}");
    drop(first);
    eventually("there is room again", || create("b", 2 * unit).is_ok());
    drop((objects, client));
    broker.assert_nothing_left();
}

// Memory was not given back after its maker's exit (v6d 1838).
#[test]
fn cuda_object_when_its_maker_is_gone_then_nothing_is_charged() {
    const NAME: &str = "cuda_object_when_its_maker_is_gone_then_nothing_is_charged";
    let Some(device) = device(NAME) else { return };
    let broker = Broker::start();
    let client = broker.client("maker");
    let options = ObjectOptions::default();
    let objects = client.objects();
    let new = [NewObject::new("sealed", SIZE)];
    let sealed = objects.create(&new, Place::Cuda(&device), options, patience()).expect("begun");
    sealed.seal(patience()).expect("sealed");
    let new = [NewObject::new("half", SIZE)];
    let half = objects.create(&new, Place::Cuda(&device), options, patience()).expect("begun");
    assert_eq!(broker.status().uses.object_names.now.get(), 2);
    client.end();
    drop((half, objects, client));
    broker.assert_nothing_left();
}
