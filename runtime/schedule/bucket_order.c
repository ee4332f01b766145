/* Says who goes next. */
#include "schedule/bucket_order.h"

#include <stdlib.h>

int schedule_make(schedule *s, uint32_t n, const uint32_t *tensors, const uint32_t *position, uint32_t window,
                  uint32_t lag)
{
	*s = (schedule){.n = n, .window = window, .lag = lag};
	s->bucket = calloc((size_t)n + 1, sizeof *s->bucket);
	s->at = calloc((size_t)n + 1, sizeof *s->at);
	if (!s->bucket || !s->at)
		return -1;
	for (uint32_t b = 0; b < n; b++) {
		s->bucket[b].tensors = tensors[b];
		s->bucket[b].position = position ? position[b] : b;
		s->at[s->bucket[b].position] = b;
	}
	schedule_restart(s);
	return 0;
}

void schedule_free(schedule *s)
{
	free(s->bucket);
	free(s->at);
	*s = (schedule){0};
}

void schedule_restart(schedule *s)
{
	s->admitted = s->tail = s->head = s->ended = 0;
	for (uint32_t b = 0; b < s->n; b++) {
		s->bucket[b].given = 0;
		s->bucket[b].stages = s->bucket[b].left = 1;
		s->bucket[b].state = SCHEDULE_IDLE;
	}
}

void schedule_given(schedule *s, uint32_t bucket)
{
	s->bucket[bucket].given++;
}

/* Where the window that begins with a position ends. */
static uint32_t window_end(const schedule *s, uint32_t position)
{
	return s->n - position > s->window ? position + s->window : s->n;
}

uint32_t schedule_admit(schedule *s)
{
	if (s->admitted >= window_end(s, s->tail))
		return SCHEDULE_NONE;
	uint32_t b = s->at[s->admitted];
	if (s->bucket[b].given < s->bucket[b].tensors)
		return SCHEDULE_NONE;
	s->bucket[b].state = SCHEDULE_WAITING;
	s->admitted++;
	return b;
}

/* Returns the key of the bucket's next stage. */
static uint64_t key_of(const schedule *s, const schedule_bucket *b)
{
	return b->position + (uint64_t)s->lag * (b->stages - b->left);
}

uint32_t schedule_compute(schedule *s)
{
	uint32_t best = SCHEDULE_NONE;
	uint64_t least = 0;
	for (uint32_t p = s->tail; p < s->admitted; p++) {
		const schedule_bucket *b = &s->bucket[s->at[p]];
		/* A bucket past its last stage comes after all others; of several, the first, whose workspace
		 * others wait for. */
		uint64_t key = b->left ? key_of(s, b) : UINT64_MAX - s->n + p;
		if (b->state == SCHEDULE_WAITING && (best == SCHEDULE_NONE || key <= least)) {
			best = s->at[p];
			least = key;
		}
	}
	if (best != SCHEDULE_NONE)
		s->bucket[best].state = SCHEDULE_COMPUTING;
	return best;
}

void schedule_later(schedule *s, uint32_t bucket)
{
	s->bucket[bucket].state = SCHEDULE_WAITING;
}

void schedule_begun(schedule *s, uint32_t bucket, uint32_t stages)
{
	s->bucket[bucket].stages = s->bucket[bucket].left = stages;
}

static void set_left(schedule *s, uint32_t bucket, uint32_t left)
{
	s->bucket[bucket].left = left;
	while (s->head < s->n && !s->bucket[s->at[s->head]].left)
		s->head++;
}

void schedule_reached(schedule *s, uint32_t bucket, uint32_t left)
{
	set_left(s, bucket, left);
	s->bucket[bucket].state = SCHEDULE_AT_EXCHANGE;
}

uint32_t schedule_exchange(schedule *s)
{
	uint32_t best = SCHEDULE_NONE, end = window_end(s, s->head);
	uint64_t least = 0;
	for (uint32_t p = s->head; p < end; p++) {
		const schedule_bucket *b = &s->bucket[s->at[p]];
		if (b->left && (best == SCHEDULE_NONE || key_of(s, b) <= least)) {
			best = s->at[p];
			least = key_of(s, b);
		}
	}
	if (best == SCHEDULE_NONE || s->bucket[best].state != SCHEDULE_AT_EXCHANGE)
		return SCHEDULE_NONE;
	s->bucket[best].state = SCHEDULE_EXCHANGING;
	return best;
}

void schedule_exchanged(schedule *s, uint32_t bucket, uint32_t left)
{
	set_left(s, bucket, left);
	s->bucket[bucket].state = SCHEDULE_WAITING;
}

int schedule_ended(schedule *s, uint32_t bucket)
{
	s->bucket[bucket].state = SCHEDULE_ENDED;
	while (s->tail < s->admitted && s->bucket[s->at[s->tail]].state == SCHEDULE_ENDED)
		s->tail++;
	if (++s->ended < s->n)
		return 0;
	schedule_restart(s);
	return 1;
}
