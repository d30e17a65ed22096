--  Access to nested functions (descriptors told by the lowest bit of the pointer), controlled types, tasks, exceptions.
with Ada.Text_IO; use Ada.Text_IO;
with Ada.Finalization;
with Ada.Containers.Vectors;

procedure Accesses is

   package Things is
      type Thing is new Ada.Finalization.Controlled with record
         N : Integer := 0;
      end record;
      overriding procedure Initialize (T : in out Thing);
      overriding procedure Adjust (T : in out Thing);
      overriding procedure Finalize (T : in out Thing);
      Made, Copied, Gone : Natural := 0;
      type Shape is abstract tagged record
         Side : Integer;
      end record;
      function Area (S : Shape) return Integer is abstract;
      type Square is new Shape with null record;
      overriding function Area (S : Square) return Integer;
      type Triangle is new Shape with null record;
      overriding function Area (S : Triangle) return Integer;
   end Things;

   package body Things is
      overriding procedure Initialize (T : in out Thing) is
      begin
         Made := Made + 1;
         T.N := Made;
      end Initialize;
      overriding procedure Adjust (T : in out Thing) is
      begin
         Copied := Copied + 1;
         T.N := T.N + 1000;
      end Adjust;
      overriding procedure Finalize (T : in out Thing) is
         pragma Unreferenced (T);
      begin
         Gone := Gone + 1;
      end Finalize;
      overriding function Area (S : Square) return Integer is (S.Side * S.Side);
      overriding function Area (S : Triangle) return Integer is (S.Side * S.Side / 2);
   end Things;

   use Things;

   package Vectors is new Ada.Containers.Vectors (Natural, Integer);

   Offset : Integer := 7;

   function Apply (F : not null access function (X : Integer) return Integer; Times : Natural) return Integer is
      Sum : Integer := 0;
   begin
      for I in 1 .. Times loop
         Sum := (Sum + F (I)) mod 100_003;
      end loop;
      return Sum;
   end Apply;

   function Add (X : Integer) return Integer is (X + Offset);
   function Twice (X : Integer) return Integer is (X * 2 + Offset);
   function Square_Of (X : Integer) return Integer is (X * X mod 97);

   function Total (S : Shape'Class) return Integer is (Area (S));

   function Deep (N : Integer) return Integer is
      Extra : Integer := N;
      function Inner (X : Integer) return Integer is (X + Extra + Offset);
   begin
      Extra := Extra + 1;
      return Apply (Inner'Access, 50);
   end Deep;

   function Checked (N : Integer) return Integer is
      A : array (1 .. 10) of Integer := (others => N);
   begin
      return A (N);
   exception
      when Constraint_Error =>
         return -N;
   end Checked;

   task type Worker (Id : Integer) is
      entry Start (V : Integer);
      entry Result (V : out Integer);
   end Worker;
   task body Worker is
      Mine : Integer;
   begin
      accept Start (V : Integer) do
         Mine := V;
      end Start;
      Mine := Apply (Add'Access, Mine) + Id;
      accept Result (V : out Integer) do
         V := Mine;
      end Result;
   end Worker;

   Sum : Integer := 0;
   V   : Vectors.Vector;
begin
   for I in 1 .. 200 loop
      Offset := I mod 13;
      Sum := (Sum + Apply (Add'Access, 20) + Apply (Twice'Access, 10)
              + Apply (Square_Of'Access, 10) + Deep (I) + Checked (I mod 20)) mod 1_000_003;
      declare
         T : Thing;
         U : constant Thing := T;
         S : constant Square := (Side => I);
         R : constant Triangle := (Side => U.N mod 50);
      begin
         Sum := (Sum + Total (S) + Total (R)) mod 1_000_003;
      end;
      V.Append (Sum);
   end loop;
   declare
      A : Worker (1);
      B : Worker (2);
      X, Y : Integer;
   begin
      A.Start (10);
      B.Start (20);
      A.Result (X);
      B.Result (Y);
      Sum := Sum + X + Y;
   end;
   for E of V loop
      Sum := (Sum * 31 + E) mod 1_000_003;
   end loop;
   Put_Line ("sum" & Integer'Image (Sum) & " made" & Natural'Image (Made)
             & " copied" & Natural'Image (Copied) & " gone" & Natural'Image (Gone));
end Accesses;
