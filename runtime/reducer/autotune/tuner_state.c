/* Saving what auto has decided, the residuals that it carries over, and its reducers' states. */
#include "reducer/autotune/tuner_state.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

const char tuner_state_magic[8] = "GCAUTO01";

uint64_t tuner_list_hash(const tuner *c)
{
	uint64_t h = 0;
	for (uint32_t k = 0; k < c->config.n; k++)
		h = XXH64(c->config.candidate[k].text, strlen(c->config.candidate[k].text), h + 1);
	return h;
}

uint64_t tuner_tensors_hash(const tuner *c)
{
	uint64_t h = 0;
	for (uint32_t i = 0; i < c->ntensors; i++)
		h = id_mix(h, layout_hash_tensor(&c->layout.tensors[i]));
	return h;
}

uint64_t tuner_numel(const tuner *c, uint32_t i)
{
	return c->layout.tensors[c->ntensors - 1 - i].numel;
}

uint64_t tuner_carry_bytes(const tuner *c, uint32_t i)
{
	return sizeof(uint64_t) + tuner_padded(tuner_numel(c, i) * sizeof(float));
}

uint64_t tuner_checksum(const void *buf, uint64_t bytes)
{
	return XXH64((const char *)buf + offsetof(tuner_state_head, bytes), bytes - offsetof(tuner_state_head, bytes), 0);
}

gradcomp_status tuner_settle(tuner *c, const char *what, gradcomp_error *err)
{
	while ((c->busy || c->measuring || c->callbacks) && !c->failed)
		pthread_cond_wait(&c->changed, &c->lock);
	if (c->failed)
		return error_set(err, c->failed, "%s", c->failure.text);
	if (c->ngiven)
		return error_set(err, GRADCOMP_ERR_STATE, "%s in the middle of a step: wait for it first", what);
	return GRADCOMP_OK;
}

static void fill_head(const tuner *c, tuner_state_head *h)
{
	memset(h, 0, sizeof *h);
	memcpy(h->magic, tuner_state_magic, sizeof tuner_state_magic);
	h->step = c->steps;
	h->tensors = tuner_tensors_hash(c);
	h->ntensors = c->ntensors;
	h->nparts = c->partition->n;
	h->settled = c->last.phase == TUNER_KEEP;
	snprintf(h->candidate, sizeof h->candidate, "%s", c->config.candidate[c->now.candidate].text);
	for (uint32_t i = 0; i < c->partition->n; i++)
		snprintf(h->part[i], sizeof h->part[i], "%s", c->config.candidate[c->partition->sub[i].candidate].text);
	h->list = tuner_list_hash(c);
	h->last = c->last;
	h->error = c->timer.error;
	for (uint32_t i = 0; i < c->ntensors; i++)
		h->ncarried += c->carry[i] != NULL;
}

static gradcomp_status put_parts(const tuner *c, char *p, const uint64_t *bytes, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < c->partition->n; i++) {
		uint64_t got;
		memcpy(p, &bytes[i], sizeof *bytes);
		st = gradcomp_reducer_save(&c->partition->sub[i].r->base, p + sizeof *bytes, bytes[i], &got, err);
		p += sizeof *bytes + tuner_padded(bytes[i]);
	}
	return st;
}

/* Refused by every rank alike, which therefore have nothing to say to each other. */
gradcomp_status tuner_save_shared(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                  gradcomp_error *err)
{
	(void)base, (void)buf, (void)capacity, (void)bytes;
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                 "save: what auto has decided is of so many ranks, and not shared: save each rank's state, or ask for "
	                 "the compressor that it has settled on");
}

gradcomp_status tuner_save(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	tuner *c = (tuner *)base;
	uint64_t behind[TUNER_PARTS] = {0};
	char *p = buf;
	tuner_state_head h;
	pthread_mutex_lock(&c->lock);
	gradcomp_status st = tuner_settle(c, "save", err);
	for (uint32_t i = 0; !st && i < c->partition->n; i++)
		st = gradcomp_reducer_save(&c->partition->sub[i].r->base, NULL, 0, &behind[i], err);
	if (st)
		goto done;
	fill_head(c, &h);
	h.bytes = sizeof h + tuner_padded(c->ntensors);
	for (uint32_t i = 0; i < c->ntensors; i++)
		h.bytes += c->carry[i] ? tuner_carry_bytes(c, i) : 0;
	for (uint32_t i = 0; i < c->partition->n; i++)
		h.bytes += sizeof *behind + tuner_padded(behind[i]);
	*bytes = h.bytes;
	if (!buf)
		goto done;
	if (capacity < h.bytes) {
		st = error_set(err, GRADCOMP_ERR_INVALID, "save: the buffer has %llu bytes, the state takes %llu",
		               (unsigned long long)capacity, (unsigned long long)h.bytes);
		goto done;
	}
	memset(p, 0, h.bytes);
	memcpy(p, &h, sizeof h);
	p += sizeof h;
	memcpy(p, c->partition->of, c->ntensors);
	p += tuner_padded(c->ntensors);
	for (uint32_t i = 0; i < c->ntensors; i++) {
		uint64_t number = i;
		if (!c->carry[i])
			continue;
		memcpy(p, &number, sizeof number);
		memcpy(p + sizeof number, c->carry[i], tuner_numel(c, i) * sizeof(float));
		p += tuner_carry_bytes(c, i);
	}
	st = put_parts(c, p, behind, err);
	h.checksum = tuner_checksum(buf, h.bytes);
	memcpy(buf, &h, sizeof h);
done:
	pthread_mutex_unlock(&c->lock);
	return st;
}
