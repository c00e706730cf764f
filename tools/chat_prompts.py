"""Open prompts, which have no right answer: a chat model answers them itself (`answers: model`).

    python tools/chat_prompts.py resources/written

They keep a healed model in the habit of answering. Kinds: code and its tests, SQL, regular
expressions, shell commands, concepts, differences, translations, words, capitals, reasons, lists,
letters and poems. The same seed gives the same files.
"""

import argparse
import json
import random
from itertools import product
from pathlib import Path

SPLITS = {"validation": 30, "train": 500}  # prompts
SEED = 0

PROGRAMMING_LANGUAGES = "Python JavaScript Java".split()
FUNCTIONS = """
returns the factorial of n
checks whether a text is a palindrome
returns the largest element of a list without max()
counts the vowels of a text
removes duplicates from a list and keeps the order
merges two sorted lists
returns the greatest common divisor of two numbers
checks whether a number is prime
converts degrees Celsius into Fahrenheit
reads a CSV file and returns its rows as dictionaries
returns the words of a text sorted by their length
flattens a list of lists
counts how often each word occurs in a text
finds the second largest number of a list
reverses the words of a sentence
computes the mean and the median of a list
returns all pairs of a list that add up to a target
checks whether two texts are anagrams
splits a list into chunks of n elements
searches a sorted list by bisection
sorts a list by the bubble sort algorithm
returns the transpose of a matrix
writes a dictionary to a JSON file
downloads a page and returns its title
counts the lines of a file
generates a random password of n characters
converts a Roman numeral into a number
returns the sum of the digits of a number
multiplies two matrices
rotates a list by k positions
finds the longest word of a sentence
returns the n-th triangular number
checks whether brackets in a text are balanced
inverts a dictionary
computes the distance between two points
capitalises the first letter of every word
returns the common elements of two lists
removes punctuation from a text
measures how long another function takes
retries a function up to three times
groups a list of dictionaries by a key
formats a number of seconds as hours, minutes and seconds
returns the powers of two below n
compresses a text by run lengths
checks whether a year is a leap year
validates an e-mail address
lists all files of a folder with a given ending
implements a stack with push and pop
implements a queue with a limited size
returns the binary form of a number as text
"""
PYTHON_TERMS = """
lambda with break continue global nonlocal assert try finally async await super() enumerate() zip()
map() filter() isinstance() range() sorted() any() @property @staticmethod __init__ *args **kwargs
"""
SQL_QUERIES = """
selects the ten most expensive products
returns the mean salary of each department
lists all customers who never placed an order
finds duplicate e-mail addresses
joins a table of books with a table of authors
returns the newest order of each user
deletes all sessions that are older than 30 days
updates the price of every product by ten percent
returns the second highest salary
counts the users who signed up in each month
lists the departments that have more than five employees
creates a table of students with an id, a name and a birth date
selects all rows in which the city is missing
returns the total revenue per country
adds a column for the phone number to a table
returns the five longest titles
lists the products that were never sold
inserts two rows into a table of cities
ranks players by their score
selects all names that start with A
"""
PATTERNS = """
a phone number such as 555-123-4567
a hexadecimal colour such as #a1b2c3
a time such as 09:45
an IPv4 address
a word in capital letters
a postal code of five digits
a decimal number with two digits after the point
a line that starts with a hash sign
an e-mail address
a URL that starts with https
a text between double quotes
a number with a thousands separator such as 1,234,567
two equal words in a row
a file name that ends with .csv
"""
SHELL_TASKS = """
lists the files of a folder by size
finds all files that end with .log
counts the lines of a file
shows the last 20 lines of a file
copies a folder to another machine
shows how much disk space is left
stops a process by its name
replaces a word in a file
makes a script executable
unpacks a .tar.gz archive
shows which process listens on port 8080
prints the second column of a file
searches for a word in all files of a folder
creates a new branch in Git
undoes the last commit in Git but keeps the changes
shows the differences between two files
"""
CONCEPTS = """
a linked list|a binary tree|recursion|an operating system|a database index|a compiler|a web server|
encryption|machine learning|a neural network|version control|a unit test|object-oriented programming|
an API|a cache|a deadlock|a race condition|garbage collection|a pointer|dynamic programming|big O notation|
a firewall|cloud computing|a virtual machine|a container image|photosynthesis|gravity|inflation|
a black hole|a vaccine|an atom|DNA|a volcano|the water cycle|evolution|a democracy|a mortgage|
supply and demand|the internet|a battery|sound|friction|an ecosystem|a glacier|a metaphor|a sonnet|
a proton|a prime number|a derivative|a probability
"""
DIFFERENCES = """
a list and a tuple in Python|a process and a thread|HTTP and HTTPS|a stack and a queue|
SQL and NoSQL databases|a compiler and an interpreter|TCP and UDP|== and is in Python|
an array and a linked list|a class and an object|Git and GitHub|RAM and a hard disk|
a virus and a bacterium|weather and climate|a comet and an asteroid|mass and weight|
a fruit and a vegetable|a crocodile and an alligator|revenue and profit|a simile and a metaphor
"""
LANGUAGES = "French German Spanish Italian".split()
SENTENCES = """
Where is the railway station?
I would like a cup of coffee.
My brother works in a hospital.
The book is on the table.
We are going to the cinema tonight.
How much does this shirt cost?
She has lived here for ten years.
The children are playing in the garden.
Can you help me, please?
I forgot my keys at home.
The train leaves at seven o'clock.
Thank you for your letter.
It will rain tomorrow.
He speaks three languages.
"""
QUESTIONS = """
do leaves turn red in autumn
does ice float on water
do we dream
is the ocean salty
do cats purr
does the moon change its shape
do we have seasons
do onions make us cry
is exercise healthy
do planes leave white trails
does bread rise
do stars twinkle
is biodiversity important
do we yawn
does metal feel colder than wood
is Pluto no longer called a planet
do birds migrate
does a rainbow have colours
do programmers use version control
should passwords be long
are unit tests useful
do computers use binary numbers
is Python popular
"""
LISTS = """
programming languages for the web|countries in South America|healthy breakfasts|sorting algorithms|
ways to save energy at home|famous painters|things to pack for a hike|good habits for learning|
HTTP status codes and their meaning|planets with rings|musical instruments with strings|
data structures in Python|ways to make code faster|rules for a good meeting
"""
WORDS = """
happy quick important difficult begin large quiet honest brave ancient clever repair angry rich easy
"""
COUNTRIES = """
Japan|Brazil|Egypt|Canada|Norway|Kenya|Portugal|Australia|Argentina|Thailand|Poland|Greece|Turkey|
Morocco|Peru|India|South Korea|Ireland|Hungary|Vietnam
"""
LETTERS = """
moves a meeting from Monday to Wednesday
thanks a colleague for help
asks a landlord to repair the heating
invites friends to a birthday party
asks a teacher for more time
complains about a late parcel
congratulates a friend on a new job
asks for the price of a product
apologises for a mistake in an invoice
reports a bug in an app
"""
POEMS = (
    "autumn|a lighthouse|the moon|a train|snow|coffee|friendship|the desert|a garden|time|rain|home"
)


def list_prompts() -> list[str]:
    """All prompts, by kind."""
    lengths = ("one sentence", "two sentences", "three sentences")
    functions = [
        f"Write a {language} function that {text}."
        for language, text in product(PROGRAMMING_LANGUAGES, _split(FUNCTIONS))
    ]
    concepts = [
        f"Explain in {lengths[index % len(lengths)]} what {concept} is."
        for index, concept in enumerate(_split(CONCEPTS, "|"))
    ]
    translations = [
        f"Translate into {language}: {sentence}"
        for language, sentence in product(LANGUAGES, _split(SENTENCES))
    ]
    return [
        *functions,
        *(f"Write a unit test for a Python function that {text}." for text in _split(FUNCTIONS)),
        *(f"What does {term} do in Python?" for term in PYTHON_TERMS.split()),
        *(f"Write a SQL query that {text}." for text in _split(SQL_QUERIES)),
        *(f"Write a regular expression that matches {text}." for text in _split(PATTERNS)),
        *(f"Which shell command {text}?" for text in _split(SHELL_TASKS)),
        *concepts,
        *(f"Give an example of {concept}." for concept in _split(CONCEPTS, "|")),
        *(f"What is the difference between {pair}?" for pair in _split(DIFFERENCES, "|")),
        *translations,
        *(f"What is a synonym of '{word}'?" for word in WORDS.split()),
        *(f"What is the capital of {country}?" for country in _split(COUNTRIES, "|")),
        *(f"Why {question}?" for question in _split(QUESTIONS)),
        *(f"Name three {things}." for things in _split(LISTS, "|")),
        *(f"Write a short e-mail that {text}." for text in _split(LETTERS)),
        *(f"Write a short poem about {subject}." for subject in _split(POEMS, "|")),
    ]


def _split(lines: str, separator: str = "\n") -> list[str]:
    parts = (part.strip() for part in lines.split(separator))
    return [part for part in parts if part]


def write_prompts(folder: Path) -> None:
    """Write `prompts_SPLIT.jsonl` for each split, without a prompt in both."""
    prompts = list_prompts()
    random.Random(SEED).shuffle(prompts)
    for split, n_prompts in SPLITS.items():
        drawn = prompts[:n_prompts]
        del prompts[:n_prompts]
        lines = [f"{json.dumps({'query': prompt})}\n" for prompt in drawn]
        (folder / f"prompts_{split}.jsonl").write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write_prompts(parser.parse_args().folder)
