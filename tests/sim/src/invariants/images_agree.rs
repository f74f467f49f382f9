//! Nodes that show the same version of the metadata show the same metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

use corduroy::controller::MetadataImage;

use crate::network::Host;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct ImagesAgree {
    images: BTreeMap<u64, Arc<MetadataImage>>,
    looked: BTreeMap<Host, u64>,
}

impl Invariant for ImagesAgree {
    fn name(&self) -> &'static str {
        "images_agree"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, node) in &moment.seen.nodes {
            let Some(image) = &node.image else {
                self.looked.remove(host);
                continue;
            };
            if self.looked.insert(*host, image.version) == Some(image.version) {
                continue;
            }
            let first = self
                .images
                .entry(image.version)
                .or_insert_with(|| image.clone());
            if format!("{first:?}") != format!("{image:?}") {
                return Err(format!(
                    "version {} of the metadata on node {host} is {image:?}, elsewhere {first:?}",
                    image.version
                ));
            }
        }
        Ok(())
    }
}
