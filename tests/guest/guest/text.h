/* Texts, and as much of JSON as the host's messages need: it writes them without blanks, its fields in a known order. */
#ifndef TEXT_H
#define TEXT_H

#include "machine.h"

struct text {
    const uint8_t *at;
    uint32_t length;
};

#define TEXT(literal) ((struct text){(const uint8_t *)(literal), sizeof(literal) - 1})

bool equal(struct text one, struct text other);
/* Whether it begins with this, which is then cut off. */
bool cut(struct text *text, struct text beginning);
/* Cuts everything off up to the end of the first place where this is; false, and nothing happened, if it is nowhere. */
bool cut_to(struct text *text, struct text wanted);
/* Cuts a string off, with its quotes. */
struct text cut_string(struct text *text);
/* What a string stands for, written to `to`, which it fits into if it fits into `text`. */
struct text unescaped(struct text string, uint8_t *to);
uint64_t number_of(struct text text);
/* Writes a number as text; how long it is. */
uint32_t digits(uint64_t number, uint8_t to[20]);

#endif
