//! The size of every layout: PROTOCOL.md gives them, and a test compares the two. Must never leave
//! out a layout that is sent.

use crate::admin;
use crate::error::StatusItem;
use crate::facts::FactsItem;
use crate::gpu::GpuItem;
use crate::handle::{HandleItem, HandlePrefixItem};
use crate::message::{
    AcquireHead, AllocationItem, DeclareItem, DrainedItem, GoingAway, GrantItem, Header, Hello,
    HelloReply, Join, LeaseItem, RecallItem, RedepositItem, RefusedItem, RegisterHead,
    RegisterItem, RegisterReplyHead, Registered, Resolve, RevokedItem, SupplyItem,
};
use crate::object::{
    ObjectCreateHead, ObjectCreated, ObjectDeleteItem, ObjectEventItem, ObjectGetHead,
    ObjectGotHead, ObjectGotItem, ObjectGroup, ObjectItem, ObjectName, ObjectPage, ObjectPrefix,
    ObjectRecord, ObjectScope, ObjectSealed, ObjectTouchHead,
};

/// Name of the structure and its size in bytes.
pub const LAYOUTS: &[(&str, usize)] = &[
    ("Header", size_of::<Header>()),
    ("Status", size_of::<StatusItem>()),
    ("Handle", size_of::<HandleItem>()),
    ("HandlePrefix", size_of::<HandlePrefixItem>()),
    ("FactsItem", size_of::<FactsItem>()),
    ("Gpu", size_of::<GpuItem>()),
    ("Hello", size_of::<Hello>()),
    ("HelloReply", size_of::<HelloReply>()),
    ("Join", size_of::<Join>()),
    ("RegisterHead", size_of::<RegisterHead>()),
    ("RegisterItem", size_of::<RegisterItem>()),
    ("RedepositItem", size_of::<RedepositItem>()),
    ("RegisterReplyHead", size_of::<RegisterReplyHead>()),
    ("Registered", size_of::<Registered>()),
    ("AllocationItem", size_of::<AllocationItem>()),
    ("AcquireHead", size_of::<AcquireHead>()),
    ("Resolve", size_of::<Resolve>()),
    ("GrantItem", size_of::<GrantItem>()),
    ("LeaseItem", size_of::<LeaseItem>()),
    ("DeclareItem", size_of::<DeclareItem>()),
    ("RecallItem", size_of::<RecallItem>()),
    ("SupplyItem", size_of::<SupplyItem>()),
    ("RefusedItem", size_of::<RefusedItem>()),
    ("RevokedItem", size_of::<RevokedItem>()),
    ("DrainedItem", size_of::<DrainedItem>()),
    ("GoingAway", size_of::<GoingAway>()),
    ("ObjectCreateHead", size_of::<ObjectCreateHead>()),
    ("ObjectItem", size_of::<ObjectItem>()),
    ("ObjectCreated", size_of::<ObjectCreated>()),
    ("ObjectGroup", size_of::<ObjectGroup>()),
    ("ObjectSealed", size_of::<ObjectSealed>()),
    ("ObjectName", size_of::<ObjectName>()),
    ("ObjectGetHead", size_of::<ObjectGetHead>()),
    ("ObjectGotHead", size_of::<ObjectGotHead>()),
    ("ObjectGotItem", size_of::<ObjectGotItem>()),
    ("ObjectDeleteItem", size_of::<ObjectDeleteItem>()),
    ("ObjectScope", size_of::<ObjectScope>()),
    ("ObjectTouchHead", size_of::<ObjectTouchHead>()),
    ("ObjectPrefix", size_of::<ObjectPrefix>()),
    ("ObjectPage", size_of::<ObjectPage>()),
    ("ObjectRecord", size_of::<ObjectRecord>()),
    ("ObjectEventItem", size_of::<ObjectEventItem>()),
    ("admin::Query", size_of::<admin::Query>()),
    ("admin::Page", size_of::<admin::Page>()),
    ("admin::NodeStatus", size_of::<admin::NodeStatus>()),
    ("admin::AllocationRecord", size_of::<admin::AllocationRecord>()),
    ("admin::LeaseRecord", size_of::<admin::LeaseRecord>()),
    ("admin::ClientRecord", size_of::<admin::ClientRecord>()),
    ("admin::AccountRecord", size_of::<admin::AccountRecord>()),
    ("admin::Limits", size_of::<admin::Limits>()),
    ("admin::SetLimit", size_of::<admin::SetLimit>()),
    ("admin::LimitChange", size_of::<admin::LimitChange>()),
    ("admin::Metrics", size_of::<admin::Metrics>()),
    ("admin::OwnedObject", size_of::<admin::OwnedObject>()),
    ("admin::TombstoneRecord", size_of::<admin::TombstoneRecord>()),
    ("admin::Act", size_of::<admin::Act>()),
    ("admin::ActRecord", size_of::<admin::ActRecord>()),
    ("admin::EventRecord", size_of::<admin::EventRecord>()),
];
