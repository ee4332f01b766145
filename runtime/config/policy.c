#include "config/policy.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "base/suggest.h"
#include "config/name_rules.h"
#include "config/spec.h"

#define BIT(n) (1u << (n))
#define ALL_ROLES (BIT(GRADCOMP_ROLE_EP + 1) - 1)
#define ALL_TYPES (BIT(GRADCOMP_F32) | BIT(GRADCOMP_F16) | BIT(GRADCOMP_BF16))

typedef enum word_kind { WORD_ROLE, WORD_OPERATION, WORD_TYPE } word_kind;

static const struct word {
	const char *text;
	word_kind kind;
	uint32_t bits;
} words[] = {
	{"any", WORD_ROLE, ALL_ROLES},
	{"dp", WORD_ROLE, BIT(GRADCOMP_ROLE_DP)},
	{"tp", WORD_ROLE, BIT(GRADCOMP_ROLE_TP)},
	{"pp", WORD_ROLE, BIT(GRADCOMP_ROLE_PP)},
	{"ep", WORD_ROLE, BIT(GRADCOMP_ROLE_EP)},
	{"all_reduce", WORD_OPERATION, BIT(GRADCOMP_POLICY_ALL_REDUCE)},
	{"all_gather", WORD_OPERATION, BIT(GRADCOMP_POLICY_ALL_GATHER)},
	{"reduce_scatter", WORD_OPERATION, BIT(GRADCOMP_POLICY_REDUCE_SCATTER)},
	{"f32", WORD_TYPE, BIT(GRADCOMP_F32)},
	{"f16", WORD_TYPE, BIT(GRADCOMP_F16)},
	{"bf16", WORD_TYPE, BIT(GRADCOMP_BF16)},
};

#define NWORDS (sizeof words / sizeof words[0])
#define WORDS_TEXT \
	"words are any dp tp pp ep or @NAME, all_reduce all_gather reduce_scatter, f32 f16 bf16, and least bytes such as 64K"

bool policy_is(const char *text)
{
	text += strspn(text, " ");
	return (isalnum((unsigned char)*text) || *text == '@') && text[strcspn(text, "/:")] == '/';
}

/* A text that is being read, and where. */
typedef struct reading {
	gradcomp_policy *policy;
	const char *from;  /* the user's text */
	const char *where; /* there: the entry, or the word that is looked at */
	policy_entry *entry;
	char *room; /* for pieces */
	bool sized; /* the entry has said its least bytes */
	gradcomp_error *err;
} reading;

GRADCOMP_PRINTF(2, 3)
static gradcomp_status wrong(const reading *r, const char *fmt, ...)
{
	char text[400];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return error_set(r->err, GRADCOMP_ERR_INVALID, "policy, entry %u at character %d: %s", r->policy->nentries + 1,
	                 (int)(r->where - r->from) + 1, text);
}

static gradcomp_status unknown_word(const reading *r, const char *word)
{
	static const char *const never[] = {"f64", "float64", "double", "i8",    "i16",   "i32",   "i64",  "u8",
	                                    "int", "int8",    "int16",  "int32", "int64", "uint8", "bool", "integer"};
	suggest near;
	for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
		if (!strcmp(word, never[i]))
			return wrong(r, "'%s' is never compressed: %s; f32, f16 and bf16 are", word,
			             i < 3 ? "no code of 64-bit floats is there"
			                   : "integers count and point at things");
	suggest_start(&near, word);
	for (size_t i = 0; i < NWORDS; i++)
		suggest_try(&near, words[i].text);
	return wrong(r, "'%.40s' is no word of a selector%s; " WORDS_TEXT, word, suggest_text(&near));
}

static gradcomp_status take_name(reading *r, const char *name)
{
	policy_entry *e = r->entry;
	if (e->name || e->roles)
		return wrong(r, "'@%.40s' beside %s: an entry is for one group's name or for roles", name,
		             e->name ? "another name" : "a role");
	if (!*name || name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")])
		return wrong(r, "'@%.40s' names no group: write @ and letters, digits, '_' and '-'", name);
	e->name = name;
	return GRADCOMP_OK;
}

static gradcomp_status take_size(reading *r, const char *word)
{
	int64_t bytes = 0;
	number_result got = number_size(word, &bytes);
	if (r->sized)
		return wrong(r, "'%.40s' is a second number of least bytes", word);
	if (got != NUMBER_OK)
		return wrong(r, "'%.40s' is not a size such as 4096, 64K or 1M", word);
	r->sized = true;
	r->entry->least = (uint64_t)bytes;
	return GRADCOMP_OK;
}

static gradcomp_status take_word(reading *r, const char *word)
{
	policy_entry *e = r->entry;
	const struct word *known = NULL;
	if (!*word)
		return wrong(r, "a word is missing before or behind a '.'; " WORDS_TEXT);
	if (*word == '@')
		return take_name(r, word + 1);
	if (isdigit((unsigned char)*word))
		return take_size(r, word);
	for (size_t i = 0; i < NWORDS && !known; i++)
		if (!strcmp(words[i].text, word))
			known = &words[i];
	if (!known)
		return unknown_word(r, word);
	if (known->kind == WORD_ROLE && e->name)
		return wrong(r, "role '%s' beside '@%.40s': an entry is for one group's name or for roles", word,
		             e->name);
	uint32_t *set = known->kind == WORD_ROLE ? &e->roles : known->kind == WORD_OPERATION ? &e->named : &e->types;
	if (*set & known->bits)
		return wrong(r, "'%s' is there twice", word);
	*set |= known->bits;
	return GRADCOMP_OK;
}

/* Words of a selector, at the place `at` of the user's text. */
static gradcomp_status take_selector(reading *r, char *selector, const char *at)
{
	gradcomp_status st = GRADCOMP_OK;
	if (!*selector)
		return wrong(r, "nothing stands before the '/'; " WORDS_TEXT);
	if (selector[strcspn(selector, " ")])
		return wrong(r, "'%.60s' has a blank within: words are separated by '.'", selector);
	for (char *next = selector; !st && next;) {
		char *word = strsep(&next, ".");
		r->where = at + (word - selector);
		st = take_word(r, word);
	}
	policy_entry *e = r->entry;
	if (!e->roles && !e->name)
		e->roles = BIT(GRADCOMP_ROLE_DP);
	if (!e->types)
		e->types = ALL_TYPES;
	if (!r->sized)
		e->least = POLICY_LEAST;
	e->operations = e->named ? e->named : POLICY_ALL_OPERATIONS;
	return st;
}

static gradcomp_status take_spec(reading *r, char *spec)
{
	char name[SPEC_NAME_MAX];
	gradcomp_error inner;
	char *collective = strrchr(spec, '@');
	if (collective)
		*collective++ = '\0';
	r->entry->spec = spec;
	r->entry->collective = collective;
	if (!*spec)
		return wrong(r, "no SPEC stands behind the '/', such as block:bits=8, or none");
	if (spec_name(spec, name, &inner) || (collective && spec_name(collective, name, &inner)))
		return wrong(r, "%s", inner.text);
	return GRADCOMP_OK;
}

/* Leaves out the blanks around what stands from *start up to *end. */
static void trim(const char **start, const char **end)
{
	while (*start < *end && **start == ' ')
		++*start;
	while (*end > *start && (*end)[-1] == ' ')
		--*end;
}

/* A copy in the policy's own room, which takes two of all that is in a text. */
static char *keep(reading *r, const char *start, const char *end)
{
	char *copy = r->room;
	memcpy(copy, start, (size_t)(end - start));
	copy[end - start] = '\0';
	r->room += end - start + 1;
	return copy;
}

/* Takes what stands from `start` up to `end` of the user's text. */
static gradcomp_status take_entry(reading *r, const char *start, const char *end)
{
	gradcomp_policy *p = r->policy;
	trim(&start, &end);
	r->where = start;
	if (p->nentries == POLICY_ENTRIES)
		return wrong(r, "a policy has at most %d entries", POLICY_ENTRIES);
	if (start == end)
		return wrong(r, "it is empty; entries are separated by one '+'");
	const char *slash = memchr(start, '/', (size_t)(end - start));
	if (!slash)
		return wrong(r,
		             "'%.*s' has no '/': an entry is SELECTOR/SPEC, such as dp.all_gather/block:bits=8, and "
		             "entries are separated by '+'",
		             (int)(end - start < 60 ? end - start : 60), start);
	const char *spec = slash + 1;
	trim(&start, &slash);
	trim(&spec, &end);
	policy_entry *e = r->entry = &p->entries[p->nentries];
	r->sized = false;
	e->selector = keep(r, start, slash);
	if (p->nentries)
		strcat(p->text, "+");
	strcat(strcat(p->text, e->selector), "/");
	strncat(p->text, spec, (size_t)(end - spec));
	gradcomp_status st = take_selector(r, keep(r, start, slash), start);
	r->where = spec;
	if (!st)
		st = take_spec(r, keep(r, spec, end));
	if (!st)
		p->nentries++;
	return st;
}

static gradcomp_status take_entries(reading *r, const char *text)
{
	gradcomp_status st = GRADCOMP_OK;
	while (!st) {
		const char *end = text + strcspn(text, "+");
		st = take_entry(r, text, end);
		if (!*end)
			break;
		text = end + 1;
	}
	return st;
}

gradcomp_status policy_parse(const char *text, gradcomp_policy **out, gradcomp_error *err)
{
	const size_t length = strlen(text);
	gradcomp_policy *p;
	*out = NULL;
	if (name_rules_is(text))
		return error_set(
			err, GRADCOMP_ERR_INVALID,
			"'%.60s' has SPECs by the names of a model's tensors, which the calls of a program's groups do "
			"not have: attach the model, or write a policy such as dp/block:bits=8+any/none",
			text);
	if (length > POLICY_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "a policy of %zu characters: at most %d are taken", length,
		                 POLICY_MAX);
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			return error_set(err, GRADCOMP_ERR_INVALID, "a policy has a control character at character %zu",
			                 i + 1);
	p = calloc(1, sizeof *p);
	if (p) {
		/* "dp/" may come before it, and each entry has three pieces. */
		p->text = calloc(1, length + 4);
		p->words = malloc(2 * (length + 4) + (size_t)3 * POLICY_ENTRIES);
	}
	if (!p || !p->text || !p->words) {
		policy_free(p);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a policy");
	}
	reading r = {.policy = p, .from = text, .where = text, .room = p->words, .err = err};
	char whole[POLICY_MAX + 4];
	snprintf(whole, sizeof whole, "dp/%s", text);
	if (!policy_is(text)) {
		text = whole;
		r.from = whole + 3;
	}
	gradcomp_status st = take_entries(&r, text);
	if (st)
		policy_free(p);
	else
		*out = p;
	return st;
}

void policy_free(gradcomp_policy *p)
{
	if (!p)
		return;
	free(p->text);
	free(p->words);
	free(p);
}

/* Returns true when an entry is for all groups that another is for. */
static bool covers_groups(const policy_entry *a, const policy_entry *b)
{
	if (a->name)
		return b->name && !strcmp(a->name, b->name);
	return b->name ? a->roles == ALL_ROLES : !(b->roles & ~a->roles);
}

gradcomp_status policy_check_hidden(const gradcomp_policy *p, gradcomp_error *err)
{
	for (uint32_t j = 1; j < p->nentries; j++)
		for (uint32_t i = 0; i < j; i++) {
			const policy_entry *a = &p->entries[i], *b = &p->entries[j];
			if (covers_groups(a, b) && !(b->operations & ~a->operations) && !(b->types & ~a->types) &&
			    a->least <= b->least)
				return error_set(err, GRADCOMP_ERR_INVALID,
				                 "policy, entry %u: '%s/%s' is for nothing, since entry %u, '%s/%s', "
				                 "comes first and is for all of it: put it before that",
				                 j + 1, b->selector, b->spec, i + 1, a->selector, a->spec);
		}
	return GRADCOMP_OK;
}

/* Names of PyTorch's meshes begin with a word that their users have not written. */
static bool is_named(const char *asked, const char *name)
{
	static const char mesh[] = "mesh_";
	if (!name)
		return false;
	return !strcmp(asked, name) ||
	       (!strncmp(name, mesh, sizeof mesh - 1) && !strcmp(asked, name + sizeof mesh - 1));
}

int policy_find(const gradcomp_policy *p, const gradcomp_policy_call *call)
{
	if (call->operation > GRADCOMP_POLICY_REDUCE_SCATTER || call->role > GRADCOMP_ROLE_EP ||
	    call->dtype > GRADCOMP_BF16)
		return -1;
	for (uint32_t i = 0; i < p->nentries; i++) {
		const policy_entry *e = &p->entries[i];
		if (e->operations & BIT(call->operation) && e->types & BIT(call->dtype) && call->bytes >= e->least &&
		    (e->name ? is_named(e->name, call->name) : (e->roles & BIT(call->role)) != 0))
			return (int)i;
	}
	return -1;
}

/* Words of groups' names. */
static const struct {
	const char *text;
	gradcomp_role role;
} meanings[] = {
	{"dp", GRADCOMP_ROLE_DP},      {"ddp", GRADCOMP_ROLE_DP},   {"fsdp", GRADCOMP_ROLE_DP},
	{"hsdp", GRADCOMP_ROLE_DP},    {"data", GRADCOMP_ROLE_DP},  {"replicate", GRADCOMP_ROLE_DP},
	{"shard", GRADCOMP_ROLE_DP},   {"zero", GRADCOMP_ROLE_DP},  {"tp", GRADCOMP_ROLE_TP},
	{"tensor", GRADCOMP_ROLE_TP},  {"model", GRADCOMP_ROLE_TP}, {"mp", GRADCOMP_ROLE_TP},
	{"pp", GRADCOMP_ROLE_PP},      {"pipe", GRADCOMP_ROLE_PP},  {"pipeline", GRADCOMP_ROLE_PP},
	{"stage", GRADCOMP_ROLE_PP},   {"ep", GRADCOMP_ROLE_EP},    {"expert", GRADCOMP_ROLE_EP},
	{"experts", GRADCOMP_ROLE_EP}, {"moe", GRADCOMP_ROLE_EP},
};

/* The role that a word of n letters stands for. */
static gradcomp_role meaning(const char *word, size_t n)
{
	for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
		size_t k = 0;
		while (k < n && meanings[i].text[k] == tolower((unsigned char)word[k]))
			k++;
		if (k == n && !meanings[i].text[n])
			return meanings[i].role;
	}
	return GRADCOMP_ROLE_NONE;
}

gradcomp_role gradcomp_policy_role(const char *name, int nranks, int world)
{
	uint32_t seen = 0;
	for (const char *at = name ? name : ""; *at;) {
		size_t n = 0;
		while (isalpha((unsigned char)at[n]))
			n++;
		seen |= BIT(meaning(at, n));
		at += n ? n : 1;
	}
	seen &= ~BIT(GRADCOMP_ROLE_NONE);
	if (!seen)
		return nranks == world ? GRADCOMP_ROLE_DP : GRADCOMP_ROLE_NONE;
	for (gradcomp_role r = GRADCOMP_ROLE_DP; r <= GRADCOMP_ROLE_EP; r++)
		if (seen == BIT(r))
			return r;
	return GRADCOMP_ROLE_NONE;
}
