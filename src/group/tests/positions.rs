//! Whose a committed position is: decided by the topic that its record names, across changes of
//! leader, restarts, images that lag and clocks that differ.

use super::*;

use corduroy_group::records::GroupRecord;

const HOUR_MS: i64 = 3_600_000;

impl World {
    async fn committed(&self, topic_id: Option<TopicId>, offset: i64) {
        let committed = self.commit(topic_id, offset).await.expect("an answer");
        assert_eq!(committed, [ErrorCode::None]);
    }

    /// All positions, with the topic that each is of.
    async fn positions(&self) -> Vec<(Option<TopicId>, Option<i64>)> {
        let found = self.fetch(None).await;
        let position = |committed: &CommittedOffset| {
            let value = committed.value.as_ref().expect("no error");
            let offset = value.as_ref().map(|value| value.offset.get());
            (committed.topic_id, offset)
        };
        found.iter().map(position).collect()
    }

    /// How many positions the log holds, whoever may see them.
    fn kept(&self) -> usize {
        let machine = self.coordinator.partition.machine();
        let table = machine.groups().expect("it holds groups");
        table.get(GROUP).map_or(0, |state| state.offsets.len())
    }

    fn sees(&self, image: Arc<MetadataImage>) {
        self.metadata.set_image(image);
    }
}

#[test]
fn a_commit_outlives_a_leader_whose_successor_hears_late_of_the_topic_and_has_a_fast_clock() {
    run(|first| async move {
        first.committed(Some(OLD), 7).await;
        first.recreate_topic();
        first.committed(Some(NEW), 3).await;
        // The successor still takes the ancestor for the topic of this name.
        let second = first
            .succeed(image(1, OLD), clocks(NOON_MS + HOUR_MS))
            .await;
        calm().await;
        assert_eq!(second.positions().await, [(Some(NEW), Some(3))]);
        assert_eq!(
            offset_of(&second.fetch(Some(OLD)).await),
            [Ok(None)],
            "it is no position of the ancestor"
        );
        let late = second.commit(None, 4).await.expect("an answer");
        assert_eq!(
            late,
            [ErrorCode::CoordinatorLoadInProgress],
            "decided by this image it would be of the ancestor, and be forgotten"
        );
        second.sees(image(2, NEW));
        calm().await;
        assert_eq!(offset_of(&second.fetch(Some(NEW)).await), [Ok(Some(3))]);
        second.committed(None, 4).await;
        assert_eq!(second.positions().await, [(Some(NEW), Some(4))]);
    });
}

#[test]
fn an_ancestors_position_is_inherited_from_no_leader_however_slow_the_successors_clock() {
    run(|first| async move {
        first.committed(Some(OLD), 7).await;
        // The topic ended and was made again while nobody coordinated: this is a restart as well.
        let second = first
            .succeed(image(2, NEW), clocks(NOON_MS - HOUR_MS))
            .await;
        assert!(second.positions().await.is_empty());
        assert_eq!(offset_of(&second.fetch(Some(NEW)).await), [Ok(None)]);
        calm().await;
        assert_eq!(second.kept(), 0, "forgotten on disk");
        second.committed(Some(NEW), 3).await;
        calm().await;
        assert_eq!(second.positions().await, [(Some(NEW), Some(3))]);
    });
}

#[test]
fn a_topic_that_ended_while_nobody_coordinated_leaves_nothing_to_a_later_one() {
    run(|first| async move {
        first.committed(Some(OLD), 7).await;
        let second = first.succeed(image(2, None), clocks(NOON_MS)).await;
        assert!(second.positions().await.is_empty());
        calm().await;
        assert_eq!(second.kept(), 0, "forgotten on disk");
    });
}

#[test]
fn a_clock_that_steps_back_neither_saves_nor_kills_a_position() {
    run(|world| async move {
        world.committed(Some(OLD), 7).await;
        world.env.set_wall_offset_millis(-HOUR_MS);
        world.recreate_topic();
        assert!(world.positions().await.is_empty());
        world.env.set_wall_offset_millis(-2 * HOUR_MS);
        world.committed(Some(NEW), 3).await;
        calm().await;
        assert_eq!(world.positions().await, [(Some(NEW), Some(3))]);
        assert_eq!(world.kept(), 1);
    });
}

#[test]
fn a_position_of_a_topic_that_came_and_went_unseen_is_forgotten() {
    run(|first| async move {
        first.recreate_topic();
        first.committed(Some(NEW), 3).await;
        let second = first.succeed(image(1, OLD), clocks(NOON_MS)).await;
        calm().await;
        assert_eq!(second.positions().await, [(Some(NEW), Some(3))]);
        // Version 2 never gets here, and no topic of version 1 has ended.
        second.sees(image(3, OLD));
        assert!(second.positions().await.is_empty());
        calm().await;
        assert_eq!(second.kept(), 0, "forgotten on disk");
    });
}

#[test]
fn a_commit_that_is_under_way_when_its_topic_ends_is_forgotten_with_it() {
    run(|world| async move {
        let held = world.coordinator.writer.hold();
        let late = world.commit(Some(OLD), 7);
        world.recreate_topic();
        let fresh = world.commit(Some(NEW), 3);
        calm().await;
        drop(held);
        assert_eq!(late.await.expect("an answer"), [ErrorCode::None]);
        assert_eq!(fresh.await.expect("an answer"), [ErrorCode::None]);
        calm().await;
        assert_eq!(world.positions().await, [(Some(NEW), Some(3))]);
        assert_eq!(world.kept(), 1);
    });
}

/// Records of earlier versions, of foreign writers, and of commits with an expiry of their own.
#[test]
fn a_position_that_does_not_say_its_topic_is_of_the_present_one() {
    run(|world| async move {
        let record = GroupRecord::Offset {
            group: GROUP.to_owned(),
            partition: place(),
            value: Some(OffsetValue {
                offset: Offset::new(5),
                leader_epoch: LeaderEpoch::NONE,
                metadata: String::new(),
                commit_timestamp_ms: 1,
                expire_timestamp_ms: None,
                topic_id: None,
            }),
        };
        let term = world.coordinator.serving().expect("it leads");
        let written = world.coordinator.writer.write(term, &[record]).await;
        assert_eq!(written, Ok(()));
        world.recreate_topic();
        calm().await;
        assert_eq!(world.positions().await, [(Some(NEW), Some(5))]);
        assert_eq!(offset_of(&world.fetch(Some(NEW)).await), [Ok(Some(5))]);
    });
}
