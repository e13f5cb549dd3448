//! Names are taken from objects. Must never take one from another version than was meant.

use crate::api::{Asker, Deleted};
use crate::core::Core;
use crate::moves::Step;
use fdbroker_protocol::object::ObjectEvent;
use fdbroker_protocol::{ErrorCode, Status};

impl Core {
    pub(crate) fn delete_objects(
        &mut self,
        by: Asker,
        of_job: bool,
        objects: &[Deleted<'_>],
        step: &mut Step,
    ) {
        let done = objects.iter().map(|it| self.delete_object(by.client.0, of_job, it));
        let done: Vec<_> = done.collect();
        self.books.end_before_answer(step);
        Self::answer_objects(by, done, step);
    }

    fn delete_object(
        &mut self,
        client: u32,
        of_job: bool,
        object: &Deleted<'_>,
    ) -> Result<(), Status> {
        let scope = self.books.names_of(client, of_job)?;
        let Some((place, version)) = self.books.sealed(scope, object.name) else {
            return Err(self.missing(scope, object.name, 0));
        };
        if object.version != 0 && object.version != version {
            return Err(Status::with_value(ErrorCode::Version, version));
        }
        let name = self.books.take_off(place.group, place.member.into());
        self.books.lose_name(place);
        self.books.tell(scope, ObjectEvent::Deleted, version, &name);
        Ok(())
    }
}
