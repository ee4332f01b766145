static uint64_t numel_seen(runs *r, const gradcomp_bucket *bucket)
{
	uint64_t *seen = &r->seen[bucket->index % 64];
	if (!*seen)
		*seen = bucket->numel;
	return *seen < bucket->numel ? *seen : bucket->numel;
}
