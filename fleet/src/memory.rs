//! The pool of memory that operators share.
//!
//! A grouping gives all of its groups to the sort after it at once, and the sort must be able to hold them to spill
//! them. Pools of DataFusion do not know of that: with equal shares the sort fails where the grouping has used up its
//! own. So here a grouping has a smaller share, and spills sooner.

use std::fmt;

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

/// The share of groupings: an eighth. A sort has nearly half, and may need twice the bytes that it is given.
const OF_GROUPS: usize = 8;

/// The pool.
#[derive(Debug)]
pub struct Pool {
    fair: FairSpillPool,
    /// Bytes that one grouping may use.
    groups: usize,
}

impl Pool {
    /// A pool of so many bytes for plans with so many partitions.
    pub fn new(bytes: usize, partitions: usize) -> Pool {
        Pool {
            fair: FairSpillPool::new(bytes),
            groups: bytes / OF_GROUPS / partitions.max(1),
        }
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fair.fmt(f)
    }
}

impl MemoryPool for Pool {
    fn name(&self) -> &str {
        "groups"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.fair.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.fair.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.fair.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.fair.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let consumer = reservation.consumer();
        let wanted = reservation.size().saturating_add(additional);
        if consumer.can_spill() && consumer.name().contains("Aggregate") && wanted > self.groups {
            return Err(resources_datafusion_err!(
                "{} needs {wanted} bytes, its share is {}",
                consumer.name(),
                self.groups
            ));
        }
        self.fair.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.fair.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.fair.memory_limit()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_grouping_spills_before_the_sort_after_it_has_no_place_for_its_groups() {
        let pool: Arc<dyn MemoryPool> = Arc::new(Pool::new(64 << 20, 1));
        let register = |name: &str| {
            MemoryConsumer::new(name)
                .with_can_spill(true)
                .register(&pool)
        };
        let groups = register("SingleHashAggregateStream[0]");
        let sort = register("ExternalSorter[0]");
        assert!(groups.try_grow(8 << 20).is_ok());
        let error = groups.try_grow(1).unwrap_err().to_string();
        assert!(
            error.contains("8388609") && error.contains("8388608"),
            "{error}"
        );
        // Twice what the grouping holds.
        assert!(sort.try_grow(16 << 20).is_ok());
    }
}
