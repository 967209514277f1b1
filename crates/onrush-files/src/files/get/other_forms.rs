//! Objects in the form that a client accepts: a precompressed sibling.

use crate::files::get::reads::Reads;
use crate::files::get::siblings::{Known, PerCoding, generations, is_current, keys};
use crate::files::object::LoadedObject;
use crate::files::object::cache::CacheContext;
use crate::files::receive::upload::join;
use onrush::Request;
use onrush::compression::{Accepted, Coding};
use onrush_store::{Key, Meta, Result, StoreError, Wanted};
use std::sync::Arc;

impl Reads {
    /// Opens an object in the form that suits the request best: itself, or a sibling.
    pub(in crate::files) async fn open_for(
        self: &Arc<Self>,
        key: &Key,
        request: &Request,
        accepted: Accepted,
        wanted: Wanted,
    ) -> Result<LoadedObject> {
        let Some(siblings) = keys(key) else {
            return self.open(key, request, wanted).await;
        };
        let context = CacheContext::of(request.worker());
        let known = self
            .siblings
            .get(key.as_bytes(), context, &*self.objects.store);
        let (loaded, known) = match known {
            Some(known) => (None, known),
            None => {
                let (loaded, known) = self
                    .survey(key, siblings, request, accepted, wanted.clone())
                    .await?;
                match known {
                    Some(known) => (Some(loaded), known),
                    None => return Ok(loaded),
                }
            }
        };
        let has_range = request.header("range").is_some();
        let candidates = Coding::ALL.into_iter().filter(|&coding| match has_range {
            true => accepted.contains(coding) && known.offers(coding, request),
            false => known.choose(accepted, request) == Some(coding),
        });
        for coding in candidates {
            // If it has disappeared meanwhile, the object itself is sent.
            let sibling = self
                .open(known.sibling(coding), request, wanted.clone())
                .await;
            let sibling = sibling.ok().and_then(|it| known.represent(coding, it));
            if let Some(sibling) = sibling
                && (!has_range || sibling.representation().if_range_holds(request))
            {
                return Ok(self.prepared(sibling));
            }
        }
        match loaded {
            Some(loaded) => Ok(loaded),
            None => self.open(key, request, wanted).await,
        }
    }

    /// Opens an object and looks for its siblings. They are not known if the object has a coding of
    /// its own, or if the store does not say whether they exist.
    async fn survey(
        self: &Arc<Self>,
        key: &Key,
        siblings: PerCoding<Key>,
        request: &Request,
        accepted: Accepted,
        wanted: Wanted,
    ) -> Result<(LoadedObject, Option<Arc<Known>>)> {
        let context = CacheContext::of(request.worker());
        let generations = generations(&*self.objects.store, key, &siblings);
        let look_up = async |coding: Coding| {
            // What is remembered serves other clients as well.
            match generations.is_some() || accepted.contains(coding) {
                true => self.objects.store.meta(&siblings[coding as usize]).await,
                false => Err(StoreError::NotFound),
            }
        };
        let (loaded, (zstd, (brotli, gzip))) = join(
            self.open(key, request, wanted),
            join(
                look_up(Coding::Zstd),
                join(look_up(Coding::Brotli), look_up(Coding::Gzip)),
            ),
        )
        .await;
        let loaded = loaded?;
        let found = [zstd, brotli, gzip];
        let is_certain = |found: &Result<Meta>| matches!(found, Ok(_) | Err(StoreError::NotFound));
        if loaded.has_coding() || !found.iter().all(is_certain) {
            return Ok((loaded, None));
        }
        let times = (loaded.modified_ns(), loaded.changed_ns());
        let is_usable = found.map(|found| found.is_ok_and(|it| is_current(&it, times)));
        let known = Arc::new(Known {
            checked_ms: context.now_ms,
            key: key.clone(),
            siblings,
            generations,
            is_usable,
            content_type: loaded.content_type_of_name(),
            fields: Coding::ALL.map(|coding| loaded.fields_with(coding)),
        });
        self.siblings.add(&known, context);
        Ok((loaded, Some(known)))
    }
}
