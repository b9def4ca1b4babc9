#include "text.h"

bool equal(struct text one, struct text other)
{
    return one.length == other.length && memcmp(one.at, other.at, one.length) == 0;
}

static void skip(struct text *text, uint32_t count)
{
    text->at += count;
    text->length -= count;
}

bool cut(struct text *text, struct text beginning)
{
    if (text->length < beginning.length || memcmp(text->at, beginning.at, beginning.length) != 0)
        return false;
    skip(text, beginning.length);
    return true;
}

bool cut_to(struct text *text, struct text wanted)
{
    for (struct text rest = *text; rest.length >= wanted.length; skip(&rest, 1))
        if (cut(&rest, wanted)) {
            *text = rest;
            return true;
        }
    return false;
}

struct text cut_string(struct text *text)
{
    struct text string = {text->at + 1, 0};
    while (string.length + 1 < text->length && string.at[string.length] != '"')
        string.length += string.at[string.length] == '\\' ? 2 : 1;
    skip(text, string.length + 2 < text->length ? string.length + 2 : text->length);
    return string;
}

static uint8_t of_hexadecimal(const uint8_t *digits)
{
    uint8_t value = 0;
    for (int at = 0; at < 2; at++)
        value = value << 4 | (digits[at] <= '9' ? digits[at] - '0' : (digits[at] | 0x20) - 'a' + 10);
    return value;
}

struct text unescaped(struct text string, uint8_t *to)
{
    static const struct text names = TEXT("bfnrt"), meanings = TEXT("\b\f\n\r\t");
    uint8_t *end = to;
    for (uint32_t at = 0; at < string.length; at++) {
        uint8_t byte = string.at[at];
        if (byte == '\\' && at + 1 < string.length) {
            byte = string.at[++at];
            for (uint32_t name = 0; name < names.length; name++)
                if (byte == names.at[name])
                    byte = meanings.at[name];
            /* The host writes only control characters so. */
            if (byte == 'u' && at + 4 < string.length) {
                byte = of_hexadecimal(string.at + at + 3);
                at += 4;
            }
        }
        *end++ = byte;
    }
    return (struct text){to, (uint32_t)(end - to)};
}

uint64_t number_of(struct text text)
{
    uint64_t number = 0;
    for (; text.length > 0 && *text.at >= '0' && *text.at <= '9'; skip(&text, 1))
        number = number * 10 + (*text.at - '0');
    return number;
}

uint32_t digits(uint64_t number, uint8_t to[20])
{
    uint8_t reversed[20];
    uint32_t length = 0;
    do
        reversed[length++] = '0' + number % 10;
    while ((number /= 10) > 0);
    for (uint32_t at = 0; at < length; at++)
        to[at] = reversed[length - 1 - at];
    return length;
}
