#include "conformance/symbols.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct table {
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash, *hash; /* at least one of them is there, and tells how many symbols there are */
} table;

static table find_table(const struct link_map *m)
{
	table t = {NULL, NULL, NULL, NULL};
	for (const ElfW(Dyn) *d = m->l_ld; d->d_tag != DT_NULL; d++) {
		/* glibc has made addresses of the offsets in this table on most machines. */
		const void *p = (const void *)(d->d_un.d_ptr < m->l_addr ? d->d_un.d_ptr + m->l_addr : d->d_un.d_ptr);

		if (d->d_tag == DT_SYMTAB)
			t.symbols = p;
		if (d->d_tag == DT_STRTAB)
			t.strings = p;
		if (d->d_tag == DT_GNU_HASH)
			t.gnu_hash = p;
		if (d->d_tag == DT_HASH)
			t.hash = p;
	}
	return t;
}

/* Templates of C++ are there more than once by nature: they are weak. Two underscores: of the compiler, as a
 * sanitizer's. */
static bool exported(const ElfW(Sym) * symbol, const char *name)
{
	static const char *const fine[] = {"gradcomp_compressor_v1", "gradcomp_collective_v1", "_init", "_fini"};
	int type = ELF64_ST_TYPE(symbol->st_info);
	if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_BIND(symbol->st_info) != STB_GLOBAL || !strncmp(name, "__", 2) ||
	    (type != STT_FUNC && type != STT_OBJECT && type != STT_TLS && type != STT_GNU_IFUNC))
		return false;
	for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
		if (!strcmp(name, fine[i]))
			return false;
	return true;
}

/* The chain of the last bucket ends with the last symbol. */
static uint32_t count(const table *t)
{
	if (t->hash)
		return t->hash[1];
	const uint32_t nbuckets = t->gnu_hash[0], first = t->gnu_hash[1];
	const uint32_t *buckets = t->gnu_hash + 4 + t->gnu_hash[2] * (sizeof(ElfW(Addr)) / 4),
		       *chain = buckets + nbuckets;
	uint32_t last = 0;

	for (uint32_t b = 0; b < nbuckets; b++)
		last = buckets[b] > last ? buckets[b] : last;
	while (last >= first && last && !(chain[last - first] & 1))
		last++;
	return last ? last + 1 : 0;
}

const char *symbols_exported(const void *address)
{
	const struct link_map *m = NULL;
	Dl_info info;
	table t;
	if (!dladdr1(address, &info, (void **)(void *)&m, RTLD_DL_LINKMAP) || !m)
		return NULL;
	t = find_table(m);
	if (!t.symbols || !t.strings || (!t.gnu_hash && !t.hash))
		return NULL;
	for (uint32_t i = 1, n = count(&t); i < n; i++)
		if (exported(&t.symbols[i], t.strings + t.symbols[i].st_name))
			return t.strings + t.symbols[i].st_name;
	return NULL;
}
