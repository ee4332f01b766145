/* Samples read on several threads and handed out in their order. A worker that is
 * ahead by as many samples as there are slots waits. */
#include <stdlib.h>
#include <string.h>

#include "tools/records.h"
#include "base/thread.h"

#define SLOTS_PER_WORKER 4u
#define WORKERS_MAX 64u

struct slot {
	sample sample;
	int ready;
	gradcomp_status status;
	gradcomp_error error;
};

struct reading {
	const gradcomp_samples *s;
	uint64_t next, done, count; /* to be read, handed out */
	struct slot *slots;
	uint32_t nslots;
	int stop;
	pthread_mutex_t lock;
	pthread_cond_t turned;
};

static gradcomp_status no_memory(gradcomp_error *err, const char *key)
{
	*err = (gradcomp_error){.status = GRADCOMP_ERR_NOMEM};
	snprintf(err->text, sizeof err->text, "out of memory for sample %s", key);
	return GRADCOMP_ERR_NOMEM;
}

/* A file may have grown since its size was asked for: once more, then. */
static gradcomp_status read_part(const gradcomp_samples *s, uint64_t index, uint32_t i, sample_part *p,
                                 const char *key, gradcomp_error *err)
{
	gradcomp_status status = gradcomp_samples_part(s, index, i, &p->name, &p->bytes, err);
	for (int tries = 0; !status || (status == GRADCOMP_ERR_RANGE && tries < 3); tries++) {
		if (p->bytes >= p->room) {
			void *data = realloc(p->data, p->bytes + 1);
			if (!data)
				return no_memory(err, key);
			p->data = data;
			p->room = p->bytes + 1;
		}
		status = gradcomp_samples_read(s, index, i, p->data, p->room, &p->bytes, err);
		if (!status)
			break;
	}
	return status;
}

gradcomp_status sample_read(const gradcomp_samples *s, uint64_t index, sample *out, gradcomp_error *err)
{
	out->info = (gradcomp_sample_info){.struct_size = sizeof out->info};
	gradcomp_status status = gradcomp_samples_info(s, index, &out->info, err);
	if (!status && out->info.nparts > out->room) {
		sample_part *p = reallocarray(out->parts, out->info.nparts, sizeof *p);
		if (!p)
			return no_memory(err, out->info.key);
		memset(p + out->room, 0, (out->info.nparts - out->room) * sizeof *p);
		out->parts = p;
		out->room = out->info.nparts;
	}
	for (uint32_t i = 0; !status && i < out->info.nparts; i++)
		status = read_part(s, index, i, &out->parts[i], out->info.key, err);
	return status;
}

void sample_free(sample *s)
{
	for (uint32_t i = 0; i < s->room; i++)
		free(s->parts[i].data);
	free(s->parts);
	*s = (sample){0};
}

static void *work(void *arg)
{
	struct reading *r = arg;
	pthread_mutex_lock(&r->lock);
	for (;;) {
		while (!r->stop && r->next < r->count && r->next - r->done >= r->nslots)
			pthread_cond_wait(&r->turned, &r->lock);
		if (r->stop || r->next >= r->count)
			break;
		uint64_t index = r->next++;
		struct slot *slot = &r->slots[index % r->nslots];
		pthread_mutex_unlock(&r->lock);
		slot->status = sample_read(r->s, index, &slot->sample, &slot->error);
		pthread_mutex_lock(&r->lock);
		slot->ready = 1;
		pthread_cond_broadcast(&r->turned);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

static gradcomp_status hand_out(struct reading *r,
                                gradcomp_status (*each)(void *ctx, uint64_t index, const sample *sample,
                                                        gradcomp_error *err),
                                void *ctx, gradcomp_error *err)
{
	gradcomp_status status = GRADCOMP_OK;
	for (uint64_t i = 0; !status && i < r->count; i++) {
		struct slot *slot = &r->slots[i % r->nslots];
		pthread_mutex_lock(&r->lock);
		while (!slot->ready)
			pthread_cond_wait(&r->turned, &r->lock);
		pthread_mutex_unlock(&r->lock);
		if ((status = slot->status))
			*err = slot->error;
		else
			status = each(ctx, i, &slot->sample, err);
		pthread_mutex_lock(&r->lock);
		slot->ready = 0;
		r->done++;
		r->stop = status != GRADCOMP_OK;
		pthread_cond_broadcast(&r->turned);
		pthread_mutex_unlock(&r->lock);
	}
	return status;
}

gradcomp_status samples_each(const gradcomp_samples *s, uint32_t workers,
                             gradcomp_status (*each)(void *ctx, uint64_t index, const sample *sample,
                                                     gradcomp_error *err),
                             void *ctx, gradcomp_error *err)
{
	struct reading r = {.s = s, .count = gradcomp_samples_count(s), .nslots = SLOTS_PER_WORKER * workers};
	pthread_t threads[WORKERS_MAX];
	uint32_t started = 0;
	gradcomp_status status;
	if (!(r.slots = calloc(r.nslots, sizeof *r.slots)))
		return no_memory(err, "0");
	pthread_mutex_init(&r.lock, NULL);
	pthread_cond_init(&r.turned, NULL);
	while (started < workers && !thread_start(&threads[started], work, &r))
		started++;
	if (started || !r.count) {
		status = hand_out(&r, each, ctx, err);
	} else {
		*err = (gradcomp_error){.status = GRADCOMP_ERR_NOMEM, .text = "cannot start a thread"};
		status = GRADCOMP_ERR_NOMEM;
	}
	for (uint32_t i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t i = 0; i < r.nslots; i++)
		sample_free(&r.slots[i].sample);
	free(r.slots);
	pthread_cond_destroy(&r.turned);
	pthread_mutex_destroy(&r.lock);
	return status;
}
