//! Who owns what, as the members themselves know it. No I/O.

/// The members of a measured group.
///
/// Law: `settled` and `owned` count what the seats hold.
pub(super) struct Roster {
    seats: Vec<Seat>,
    partitions: usize,
    present: usize,
    settled: usize,
    owned: usize,
}

enum Seat {
    /// On its way into the group, or into its next generation.
    Joining,
    Settled {
        epoch: i32,
        partitions: Vec<i32>,
    },
    Gone,
}

impl Roster {
    /// All members are on their way in.
    pub(super) fn new(members: usize, partitions: usize) -> Roster {
        Roster {
            seats: (0..members).map(|_| Seat::Joining).collect(),
            partitions,
            present: members,
            settled: 0,
            owned: 0,
        }
    }

    /// A member was told what is its own, in a generation (classic) or at an epoch (consumer).
    pub(super) fn settle(&mut self, member: usize, epoch: i32, partitions: &[i32]) {
        self.put(
            member,
            Seat::Settled {
                epoch,
                partitions: partitions.to_vec(),
            },
        );
    }

    /// A member has to join again.
    pub(super) fn unsettle(&mut self, member: usize) {
        self.put(member, Seat::Joining);
    }

    /// A member left for good.
    pub(super) fn leave(&mut self, member: usize) {
        self.put(member, Seat::Gone);
    }

    fn put(&mut self, member: usize, seat: Seat) {
        let Some(place) = self.seats.get_mut(member) else {
            return;
        };
        match std::mem::replace(place, seat) {
            Seat::Settled { partitions, .. } => {
                self.settled -= 1;
                self.owned -= partitions.len();
            }
            Seat::Joining => {}
            Seat::Gone => self.present += 1,
        }
        match place {
            Seat::Settled { partitions, .. } => {
                self.settled += 1;
                self.owned += partitions.len();
            }
            Seat::Joining => {}
            Seat::Gone => self.present -= 1,
        }
    }

    /// The generation or epoch in which every member has settled and every partition has exactly
    /// one owner; `None` as long as there is none.
    pub(super) fn stable_epoch(&self) -> Option<i32> {
        if self.settled != self.present || self.owned != self.partitions {
            return None;
        }
        let mut is_owned = vec![false; self.partitions];
        let mut common = None;
        for seat in &self.seats {
            let Seat::Settled { epoch, partitions } = seat else {
                continue;
            };
            if *common.get_or_insert(*epoch) != *epoch {
                return None;
            }
            for &partition in partitions {
                let owned = usize::try_from(partition)
                    .ok()
                    .and_then(|partition| is_owned.get_mut(partition))?;
                if std::mem::replace(owned, true) {
                    return None;
                }
            }
        }
        common
    }

    /// How many have settled, and how many there are.
    pub(super) fn progress(&self) -> (usize, usize) {
        (self.settled, self.present)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_is_one_epoch_with_one_owner_for_each_partition() {
        let mut roster = Roster::new(3, 4);
        assert_eq!(roster.stable_epoch(), None);
        roster.settle(0, 1, &[0, 1]);
        roster.settle(1, 1, &[2, 3]);
        assert_eq!(roster.stable_epoch(), None, "one is on its way");
        roster.settle(2, 1, &[]);
        assert_eq!(roster.stable_epoch(), Some(1), "one may have nothing");

        roster.settle(2, 2, &[]);
        assert_eq!(roster.stable_epoch(), None, "two epochs");
        roster.settle(0, 2, &[0, 1]);
        roster.settle(1, 2, &[1, 2]);
        assert_eq!(roster.stable_epoch(), None, "1 twice, 3 without an owner");
        roster.settle(1, 2, &[2, 4]);
        assert_eq!(roster.stable_epoch(), None, "4 is no partition");
        roster.settle(1, 2, &[2]);
        assert_eq!(roster.stable_epoch(), None, "3 without an owner");
    }

    #[test]
    fn who_left_is_waited_for_no_more() {
        let mut roster = Roster::new(2, 1);
        roster.settle(0, 1, &[0]);
        roster.settle(1, 1, &[]);
        assert_eq!(roster.stable_epoch(), Some(1));
        roster.leave(0);
        assert_eq!(roster.stable_epoch(), None, "its partition has no owner");
        roster.unsettle(1);
        assert_eq!(roster.progress(), (0, 1));
        roster.settle(1, 2, &[0]);
        assert_eq!(roster.stable_epoch(), Some(2));
    }
}
