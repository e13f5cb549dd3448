//! Requests about objects: what is said to the broker, and what its answers mean. Must never lose a
//! grant or a group of an answer that cannot be used.

mod getting;
mod making;
mod message;
mod naming;

pub(super) use getting::*;
pub(super) use making::*;
pub(super) use naming::*;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::objects::NewObject;
    use fdbroker_protocol::limits::{MAX_GROUP, MAX_OBJECT_MESSAGE_BYTES, METADATA_BYTES};
    use fdbroker_protocol::object::ObjectGroup;
    use fdbroker_protocol::{ErrorCode, Kind, MAX_BATCH, Status, Writer};
    use std::time::Duration;

    #[test]
    fn chunk_when_items_are_large_then_no_message_exceeds_its_bound_and_none_is_empty() {
        let metadata = [1; METADATA_BYTES];
        let names: Vec<String> = (0..MAX_GROUP).map(|at| format!("{at:0255}")).collect();
        let object = |name| NewObject { metadata: &metadata, ..NewObject::new(name, 0) };
        let objects: Vec<NewObject<'_>> = names.iter().map(|name| object(name.as_str())).collect();
        let places = vec![0..0; objects.len()];
        let items = Items::of(&objects, &places).unwrap();
        let (mut begin, mut messages) = (0, 0);
        while begin < objects.len() {
            let range = items.chunk(begin, size_of::<ObjectGroup>());
            assert!(range.start == begin && !range.is_empty());
            let mut writer = Writer::new();
            writer.start(Kind::ObjectAdd, 1).push(&ObjectGroup { group: 1.into() });
            items.write(&mut writer, range.clone());
            assert!(writer.len() <= MAX_OBJECT_MESSAGE_BYTES, "{}", writer.len());
            (begin, messages) = (range.end, messages + 1);
        }
        assert!(messages > 1);
    }

    #[test]
    fn items_when_a_name_cannot_be_or_is_there_twice_then_refused_by_name() {
        let of = |names: &[&str]| {
            let objects: Vec<NewObject<'_>> =
                names.iter().map(|it| NewObject::new(it, 1)).collect();
            let places = vec![0..1; objects.len()];
            Items::of(&objects, &places).map(drop)
        };
        of(&["a", "b"]).unwrap();
        for (names, code) in [
            (vec!["a", ""], ErrorCode::BadHandle),
            (vec!["nul\0"], ErrorCode::BadHandle),
            (vec!["a", "a"], ErrorCode::BadHandle),
            (vec!["x".repeat(256).as_str()], ErrorCode::TooLong),
        ] {
            assert_eq!(of(&names).unwrap_err().code, code, "{names:?}");
        }
        let many: Vec<String> = (0..=MAX_GROUP).map(|at| at.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(of(&many).unwrap_err().code, ErrorCode::TooLong);
    }

    #[test]
    fn names_when_more_than_a_message_then_too_long() {
        let names = |count: usize, bytes: usize| {
            let names: Vec<String> = (0..count).map(|at| format!("{at:0bytes$}")).collect();
            Names::for_get(&names).map(|names| names.len())
        };
        assert_eq!(names(MAX_BATCH, 100).unwrap(), MAX_BATCH);
        for too_many in [names(MAX_BATCH + 1, 4), names(MAX_BATCH, 255)] {
            assert_eq!(too_many.unwrap_err().code, ErrorCode::TooLong);
        }
        assert_eq!(names(0, 1).unwrap_err().code, ErrorCode::BadHandle);
    }

    #[test]
    fn named_when_a_get_has_waited_then_it_says_for_what() {
        let names = Names::for_get(&["a", "b"]).unwrap();
        let said = |code, pid: u32| {
            let status = Status { pid, ..Status::with_value(code, 1) };
            names.named(Error::from_status(status, "get")).to_string()
        };
        let unknown = said(ErrorCode::TimedOut, 0);
        assert!(unknown.starts_with("get b: TIMED_OUT: ") && unknown.contains("no object"));
        assert!(said(ErrorCode::TimedOut, 77).contains("pid 77 is still making it"));
        assert!(said(ErrorCode::NotSealed, 77).contains("pid 77 is making it"));
        assert!(said(ErrorCode::NotFound, 0).starts_with("get b: NOT_FOUND: "));
    }

    #[test]
    fn to_ms_when_less_than_one_then_one_and_when_more_than_all_then_all() {
        assert_eq!(to_ms(Duration::ZERO), 0);
        assert_eq!(to_ms(Duration::from_micros(1)), 1);
        assert_eq!(to_ms(Duration::from_millis(5)), 5);
        assert_eq!(to_ms(Duration::MAX), u64::MAX);
    }
}
